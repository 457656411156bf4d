# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in real jobs: everybody is told, once, quickly and with names; and everything is free again."""
import re
import signal
import threading
import time

import e2e
import lab as lab_module

GROUP = 'stall_report = "2 s"\nworker_timeout = "3 s"'

# Calls by rank; ranks 0 and 1 are at site a, 2 and 3 at site b. Then what the error must name: both calls.
F, I = "numpy.zeros({}, numpy.float32)", "numpy.zeros({}, numpy.int32)"
REDUCE_10 = f"comm.all_reduce({F.format(10)})"
MISMATCHES = {
    "kind": (REDUCE_10, f"comm.broadcast({F.format(10)}, 0)", "all_reduce", "broadcast"),
    "size": (REDUCE_10, f"comm.all_reduce({F.format(11)})", "of 10 elements", "of 11 elements"),
    "very different size": (REDUCE_10, f"comm.all_reduce({F.format(300_000)})", "of 10 elements", "of 300000 elements"),
    "dtype": (REDUCE_10, f"comm.all_reduce({I.format(10)})", "float32", "int32"),
    "op": (REDUCE_10, f"comm.all_reduce({F.format(10)}, 'average')", "sum", "average"),
    "root of reduce": (f"comm.reduce({F.format(10)}, 0)", f"comm.reduce({F.format(10)}, 3)", "to root 0", "to root 3"),
    "root of broadcast": (f"comm.broadcast({F.format(10)}, 0)", f"comm.broadcast({F.format(10)}, 1)", "from root 0",
                          "from root 1"),
    "barrier": (REDUCE_10, "comm.barrier()", "all_reduce", "barrier"),
    "gather": (f"comm.all_gather({F.format(40)}, {F.format(10)})", f"comm.reduce_scatter({F.format(10)}, {F.format(40)})",
               "all_gather", "reduce_scatter"),
}


def cases():
    """[(name, call of each rank, the two texts)]"""
    made = []
    for name, (one, other, *texts) in MISMATCHES.items():
        made.append([f"{name}, same site", [one, other, one, one], texts])
        made.append([f"{name}, across sites", [one, one, other, other], texts])
    # Each site waits for the other one's root, and nobody is a source at home.
    made.append(["roots at the other site", [f"comm.broadcast({F.format(10)}, 2)"] * 2
                 + [f"comm.broadcast({F.format(10)}, 0)"] * 2, ["from root 2", "from root 0"]])
    made.append(["large broadcasts from roots at the other site", [f"comm.broadcast({F.format(500_000)}, 2)"] * 2
                 + [f"comm.broadcast({F.format(500_000)}, 1)"] * 2, ["from root 2", "from root 1"]])
    return made


MISMATCH_RANK = """
for name, calls, texts in OPTIONS["cases"]:
    comm = join()
    comm.barrier()
    # A reduce is complete on other ranks than its root before the root can object: the next call says so.
    say("case", name=name, **error_of(lambda: (eval(calls[RANK]), comm.barrier())))
    # The error stays, and no call hangs.
    say("later", name=name, **error_of(lambda: comm.all_reduce(numpy.zeros(10, numpy.float32))))
    del comm
say("done")
"""


def test_ranks_that_disagree_are_all_told_both_calls_within_a_second(make_lab):
    lab = e2e.start(make_lab, group=GROUP)
    ranks = e2e.start_ranks(lab, MISMATCH_RANK, cases=cases())
    e2e.wait(ranks, 120)
    for number, (name, _, texts) in enumerate(cases()):
        said = [rank.all_said("case")[number] for rank in ranks]
        assert {one["name"] for one in said} == {name}
        assert {one["code"] for one in said} == {"group_failed"}, said
        assert len({one["text"] for one in said}) == 1, f"{name}: ranks are told different things: {said}"
        for text in texts:
            assert text in said[0]["text"], f"{name}: {text!r} is not in {said[0]['text']!r}"
        named = set(re.findall(r"rank (\d)", said[0]["text"]))
        assert len(named) == 2, f"{name}: {said[0]['text']!r} names no two ranks"
        assert max(one["seconds"] for one in said) < 1.0, f"{name}: {[one['seconds'] for one in said]} s"
        later = [rank.all_said("later")[number] for rank in ranks]
        assert {one["text"] for one in later} == {said[0]["text"]} and max(one["seconds"] for one in later) < 0.5
    e2e.finish(lab)


STALL_RANK = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
comm = join()
comm.barrier()
say("ready")
if RANK == 3:
    signal.sigwait([signal.SIGUSR1])
begin = time.monotonic()
comm.all_reduce(numpy.ones(1000, numpy.float32))
say("done", seconds=time.monotonic() - begin)
comm.close()
"""


def stalled_seconds(lab, site):
    text = lab.http(site.namespace, site.gateway + "/metrics")[1]
    return sum(value for (name, _), value in e2e.parse_metrics(text).items() if name == "gradgate_group_stalled_seconds")


def test_a_rank_that_does_not_come_is_named_in_the_stall_report(make_lab):
    lab = e2e.start(make_lab, group=GROUP)
    ranks = e2e.start_ranks(lab, STALL_RANK)
    for rank in ranks:
        rank.said("ready")
    begin = time.monotonic()
    logged = lab.gateways[2].wait_for_line(r"waits since (\d+) s for (.*)", 6)
    assert 1.5 < time.monotonic() - begin < 5.0
    assert "rank 3 (site b)" in logged.group(2) and "rank 2" not in logged.group(2)
    for site in lab.sites:
        stall = e2e.wait_until(f"/v1/groups of site {site.name} names the rank",
                               lambda: next((g["stall"] for g in e2e.groups(lab, site) if g["stall"]
                                             and "rank 3" in g["stall"]), None), 5)
        assert "all_reduce sum float32 of 1000 elements" in stall
        assert e2e.wait_until("the metric rises", lambda: stalled_seconds(lab, site), 5) >= 1.5
    # Late is not dead.
    ranks[3].process.signal(signal.SIGUSR1)
    e2e.wait(ranks, 20)
    assert ranks[0].said("done")["seconds"] > 2
    for site in lab.sites:
        assert stalled_seconds(lab, site) == 0
    e2e.finish(lab)


LOOP_UNTIL_ERROR = """
comm = join()
x = numpy.ones(OPTIONS["count"], numpy.float32)
def loop():
    for step in range(1 << 30):
        comm.all_reduce(x, "average")
        if step == 5:
            say("running")
error = error_of(loop)
say("error", at=time.monotonic(), **error)
"""
FINITE_JOB = """
comm = join()
x = comm.all_reduce(numpy.full(100_000, RANK, numpy.float32))
assert (x == sum(range(SIZE))).all()
comm.close()
say("done")
"""


def test_a_killed_worker_fails_the_group_by_name_and_the_next_job_starts_at_once(make_lab):
    lab = e2e.start(make_lab, group=GROUP)
    ranks = e2e.start_ranks(lab, LOOP_UNTIL_ERROR, count=250_000)
    for rank in ranks:
        rank.said("running")
    ranks[2].process.kill()
    killed = time.monotonic()
    survivors = [ranks[0], ranks[1], ranks[3]]
    errors = [rank.said("error", 10) for rank in survivors]
    # Under the same name, while the dead group is still being taken down.
    again = e2e.start_ranks(lab, FINITE_JOB, name="again")
    for error in errors:
        assert error["code"] == "group_failed"
        assert "rank 2" in error["text"] and "site b" in error["text"], error["text"]
        assert error["at"] - killed < 3 + 1
    e2e.wait(again, 30)
    e2e.finish(lab)


def test_all_workers_killed_and_started_again_under_the_same_name(make_lab):
    lab = e2e.start(make_lab, group=GROUP)
    ranks = e2e.start_ranks(lab, LOOP_UNTIL_ERROR, count=50_000)
    for rank in ranks:
        rank.said("running")
    for rank in ranks:
        rank.process.kill()
    e2e.wait(e2e.start_ranks(lab, FINITE_JOB, name="again"), 30)
    e2e.finish(lab)


# ---- refusals

SMALL = ("small", "small-token-0123", "1 MiB")


class Joining:
    """A POST /v1/join in a thread of its own: a good one is answered when the group has formed."""

    def __init__(self, lab, worker, **changes):
        body = {"tenant": lab_module.TENANT, "token": lab_module.TOKEN, "job": "refusals", "group": "dp", "rank": 0, "size": 2,
                "udp_port": 40_001, "link": 0x01020304, **changes}
        self.answer = None

        def post():
            self.answer = lab.http(worker.namespace, worker.site.gateway + "/v1/join", body, timeout=30)

        self._thread = threading.Thread(target=post, daemon=True)
        self._thread.start()

    def result(self, deadline=5.0):
        self._thread.join(deadline)
        assert self.answer is not None, "no answer"
        return self.answer


def refusal(lab, worker, **changes):
    status, document = Joining(lab, worker, **changes).result()
    return status, document["code"], document["error"]


def forming(lab, site, job="refusals"):
    return next((g for g in e2e.groups(lab, site) if g["job"] == job and g["state"] == "forming"), None)


def test_joins_that_cannot_be_are_refused_with_the_reason(make_lab):
    lab = e2e.start(make_lab, group='join_timeout = "8 s"', lanes=8, tenants=((lab_module.TENANT, lab_module.TOKEN, "2 GiB"), SMALL))
    a, b = (site.workers for site in lab.sites)

    status, code, text = refusal(lab, a[0], token="wrong-token-01")
    assert (status, code) == (403, "wrong_token") and "lab" in text and "wrong-token-01" not in text
    status, code, text = refusal(lab, a[0], tenant="nobody")
    assert (status, code) == (403, "unknown_tenant") and "nobody" in text
    status, code, text = refusal(lab, a[0], rank=2)
    assert (status, code) == (400, "bad_request") and "rank 2" in text and "2" in text
    status, code, text = refusal(lab, a[0], udp_port="many")
    assert (status, code) == (400, "bad_request") and "udp_port" in text

    # Nobody may take a rank twice, or believe in another size, at either site.
    waiting = Joining(lab, a[0], rank=0, size=3)
    e2e.wait_until("site b knows of the group", lambda: forming(lab, lab.sites[1]))
    for worker in (a[1], b[0]):
        status, code, text = refusal(lab, worker, rank=0, size=3)
        assert (status, code) == (409, "rank_taken") and "rank 0" in text and "site a" in text
        status, code, text = refusal(lab, worker, rank=1, size=2)
        assert (status, code) == (409, "size_mismatch") and "3" in text and "2" in text
    assert forming(lab, lab.sites[0])["missing"] == [1, 2]

    needed = refusal(lab, b[0], tenant=SMALL[0], token=SMALL[1], job="large", rank=0, size=1)
    assert needed[:2] == (507, "no_memory") and "1 MiB" in needed[2] and re.search(r"\d+ buffers", needed[2])
    # The library says the same.
    rank = e2e.start_rank(lab, a[0], 0, 1, 'say("error", **error_of(join))', tenant=SMALL[0], token=SMALL[1], job="large")
    said = rank.said("error")
    assert said["code"] == "refused" and "1 MiB" in said["text"]
    rank = e2e.start_rank(lab, b[0], 0, 1, 'say("error", **error_of(join))', token="wrong-token-01", job="large")
    assert rank.said("error")["code"] == "refused"

    # Who waits for ranks that do not come is told which.
    status, document = waiting.result(15)
    assert (status, document["code"]) == (504, "join_timeout") and re.search(r"ranks? 1.*2", document["error"])
    e2e.finish(lab)
