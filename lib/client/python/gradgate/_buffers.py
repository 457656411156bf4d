# SPDX-License-Identifier: Apache-2.0
"""Memory of numpy arrays and CPU tensors."""

import sys
from typing import Any, NamedTuple

import numpy

from . import _library

_NUMPY = {"float32": _library.FLOAT32, "float16": _library.FLOAT16, "int32": _library.INT32, "uint8": _library.BYTES}
_SUMMED = "float32, float16, bfloat16 (PyTorch only) and int32"


class View(NamedTuple):
    """Contiguous memory of an array or tensor."""

    pointer: int
    count: int  # of elements of `dtype`
    dtype: int  # a code of gradgate.h
    owner: Any  # keeps the memory alive


def _fault(name, what, remedy):
    return ValueError("%s %s: %s" % (name, what, remedy))


def _numpy_view(x, name, writable):
    if not x.flags.c_contiguous:
        raise _fault(name, "is not C-contiguous", "pass numpy.ascontiguousarray(x), and copy the result back")
    if writable and not x.flags.writeable:
        raise _fault(name, "is not writable", "pass a copy")
    if not x.dtype.isnative or x.dtype.hasobject:
        raise TypeError("%s has dtype %s: it must hold plain numbers in the machine's byte order" % (name, x.dtype))
    return x.ctypes.data, x.size, _NUMPY.get(x.dtype.name), x.itemsize, str(x.dtype)


def _torch_view(x, name, torch):
    if x.device.type != "cpu":
        raise _fault(name, "is on %s" % x.device, "pass x.cpu(), and copy the result back")
    if x.layout != torch.strided or not x.is_contiguous():
        raise _fault(name, "is not contiguous", "pass x.contiguous(), and copy the result back")
    codes = {
        torch.float32: _library.FLOAT32,
        torch.float16: _library.FLOAT16,
        torch.bfloat16: _library.BFLOAT16,
        torch.int32: _library.INT32,
        torch.uint8: _library.BYTES,
    }
    return x.data_ptr(), x.numel(), codes.get(x.dtype), x.element_size(), str(x.dtype)


def view(x, name="x", writable=True, summed=True):
    """The memory of `x`. summed: for a collective that computes; others move any dtype, as bytes if need be."""
    torch = sys.modules.get("torch")
    if isinstance(x, numpy.ndarray):
        pointer, count, code, item_bytes, dtype = _numpy_view(x, name, writable)
    elif torch is not None and isinstance(x, torch.Tensor):
        pointer, count, code, item_bytes, dtype = _torch_view(x, name, torch)
    else:
        raise TypeError("%s is a %s: it must be a numpy array or a CPU tensor" % (name, type(x).__name__))
    if summed and code in (None, _library.BYTES):
        raise TypeError("%s has dtype %s, which cannot be summed: %s can" % (name, dtype, _SUMMED))
    if code is None:
        count, code = count * item_bytes, _library.BYTES
    return View(pointer, count, code, x)
