# SPDX-License-Identifier: Apache-2.0
"""Collectives of a training job through a gradient gateway.

A `Communicator` is one rank of a group. It takes numpy arrays and CPU tensors of PyTorch in place::

    import numpy, gradgate

    with gradgate.Communicator("10.1.0.1:9470", "lab", token, "gpt", rank=0, size=4) as comm:
        x = numpy.ones(1000, numpy.float32)
        comm.all_reduce(x)                      # every element is 4.0 now, on every rank

For DistributedDataParallel see `gradgate.torch.ddp_comm_hook`.
"""

from ._library import Error, version
from .communicator import Communicator, Work

__all__ = ["Communicator", "Error", "Work", "version"]
