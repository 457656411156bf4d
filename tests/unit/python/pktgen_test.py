# SPDX-License-Identifier: Apache-2.0
"""gradgate-pktgen against a gateway on loopback: checks, reports, exit status."""

import json
import subprocess

import pytest
from conftest import BUILD

PKTGEN = BUILD / "pktgen" / "gradgate-pktgen"
pytestmark = pytest.mark.skipif(not PKTGEN.exists(), reason="not built: %s (set GRADGATE_BUILD)" % PKTGEN)


def start(ranks, *options):
    command = [PKTGEN, "--gateway", ranks.address, "--tenant", "lab", "--token", "secret", "--json", *options]
    return subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, json.loads(out) if out else None, err


SUMMED = ["all_reduce", "reduce_scatter", "reduce"]
CASES = [(kind, dtype) for kind in SUMMED for dtype in ("float32", "float16", "bfloat16", "int32")]
CASES += [(kind, dtype) for kind in ("all_gather", "broadcast") for dtype in ("float32", "bfloat16", "bytes")]


@pytest.mark.parametrize("kind, dtype", CASES + [("barrier", "float32")])
def test_every_kind_and_dtype(gateway, kind, dtype):
    options = ["--kind", kind, "--dtype", dtype, "--workers", 3, "--elements", 30_003, "--calls", 10]
    status, report, err = finish(start(gateway(3, 0.01), *options))
    assert status == 0, err
    assert (report["calls"], report["elements_wrong"]) == (30, 0)
    # Per call: reduce has one rank with a result, reduce-scatter a third at each.
    once = kind in ("reduce_scatter", "reduce")
    assert report["elements_checked"] == (0 if kind == "barrier" else 300_030 if once else 900_090)


def test_average(gateway):
    options = ["--op", "average", "--dtype", "float16", "--workers", 4, "--elements", 1001, "--calls", 10]
    status, report, err = finish(start(gateway(4), *options))
    assert (status, report["elements_wrong"]) == (0, 0), err


def test_two_processes_agree_on_when_to_stop(gateway):
    ranks = gateway(4)
    common = ["--workers", 2, "--size", 4, "--elements", 5000, "--duration", 0.5]
    first = start(ranks, *common)
    second = start(ranks, *common, "--first-rank", 2)
    results = [finish(first), finish(second)]
    for status, report, err in results:
        assert (status, report["elements_wrong"]) == (0, 0), err
        assert report["calls"] == results[0][1]["calls"] > 0
        assert report["packets_sent_per_second"] > 0 and report["latency_us"]["p50"] > 0


def test_wrong_results_are_found(gateway):
    ranks = gateway(2)
    first = start(ranks, "--size", 2, "--elements", 1000, "--calls", 3)
    second = start(ranks, "--size", 2, "--elements", 1000, "--calls", 3, "--first-rank", 1, "--seed", 2)
    for status, report, _ in (finish(first), finish(second)):
        assert status == 1
        assert 2500 < report["elements_wrong"] <= report["elements_checked"] == 3000
        assert "call 0 element 0" in report["first_wrong"]


def test_failing_group(gateway):
    ranks = gateway(2)
    first = start(ranks, "--size", 2, "--elements", 1000)
    second = start(ranks, "--size", 2, "--elements", 1001, "--first-rank", 1)
    for status, report, err in (finish(first), finish(second)):
        assert status == 4, err
        assert "1001 elements" in report["failure"] and "1001 elements" in err


@pytest.mark.parametrize(
    "options, text",
    [
        (["--workers", 2, "--first-rank", 3, "--size", 4], "go beyond the last rank, 3"),
        (["--dtype", "bytes"], "bytes cannot be summed"),
        (["--workers", 3, "--kind", "all_gather", "--elements", 1000], "must be a multiple of --size 3"),
        (["--size", 3, "--op", "average"], "needs a power of two"),
        (["--size", 300, "--dtype", "bfloat16"], "no exact results"),
        (["--kind", "gossip"], "gossip not in"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_usage(gateway, options, text):
    status, report, err = finish(start(gateway(1), *options))
    assert (status, report) == (2, None)
    assert text in err


def test_cannot_join(gateway):
    ranks = gateway(2)
    status, _, err = finish(start(ranks, "--size", 5))
    assert status == 3 and "the group has another size" in err
    status, _, err = finish(start(ranks, "--size", 2, "--join-timeout", 1))
    assert status == 3 and "has not formed within join_timeout" in err
    ranks.address = "127.0.0.1:1"
    status, _, err = finish(start(ranks))
    assert status == 3 and "Connection refused" in err


def test_help_teaches():
    out = subprocess.run([str(PKTGEN), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "examples:" in out and "exit status:" in out and "--first-rank" in out
