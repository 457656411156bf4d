# SPDX-License-Identifier: Apache-2.0
"""The quickstart's training job through two gateways, against gloo and against itself."""
import json
import os
import sys

import pytest

import lab as lab_module

sys.path.insert(0, os.path.join(lab_module.ROOT, "deploy", "quickstart"))
import quickstart  # noqa: E402

STEPS = 20


@pytest.fixture
def running_lab(make_lab):
    for part in ("app/gateway/gradgate", "lib/client/libgradgate.so"):
        if not os.path.exists(os.path.join(lab_module.BUILD, part)):
            pytest.skip(f"{part} is not built in {lab_module.BUILD}")
    lab = make_lab(sites=2, workers=2)
    for site in lab.sites:
        lab.start_gateway(site)
    return lab


def train_with_gloo(lab, steps, seed):
    """All ranks in one worker's namespace, over its loopback."""
    namespace = lab.workers[0].namespace
    store = os.path.join(lab.out, "gloo-store")
    size = len(lab.workers)
    outs = [os.path.join(lab.out, f"gloo-{rank}.json") for rank in range(size)]
    processes = [lab.run(namespace, ["/usr/bin/python3", os.path.join(quickstart.HERE, "train.py"), "--backend", "gloo",
                                     "--store", store, "--steps", str(steps), "--seed", str(seed), "--rank", str(rank),
                                     "--size", str(size), "--out", outs[rank]],
                         name=f"gloo-rank{rank}", env={"GLOO_SOCKET_IFNAME": "lo"}) for rank in range(size)]
    lab_module.wait_for_all(processes, 120 + 30 * steps)
    results = []
    for out in outs:
        with open(out, encoding="utf-8") as file:
            results.append(json.load(file))
    return results


def test_training_has_the_same_bits_everywhere_and_every_time_and_the_loss_of_gloo(running_lab):
    first = quickstart.train(running_lab, STEPS, seed=7, name="first")
    assert len({result["sha256"] for result in first}) == 1
    again = quickstart.train(running_lab, STEPS, seed=7, name="again")
    assert {result["sha256"] for result in again} == {first[0]["sha256"]}
    assert again[0]["losses"] == first[0]["losses"]
    gloo = train_with_gloo(running_lab, STEPS, seed=7)
    assert first[0]["losses"] == pytest.approx(gloo[0]["losses"], rel=1e-4)
    assert first[0]["losses"][-1] < 0.75 * first[0]["losses"][0]
    for site in running_lab.sites:
        running_lab.stop_gateway(site)
