# SPDX-License-Identifier: Apache-2.0
"""Several jobs on the same gateways at once."""
import e2e

CHECKED_LOOP = """
comm = join()
kind = element_type("float32")
for step in range(OPTIONS["steps"]):
    op = "average" if step % 3 == 0 else "sum"
    calls = [[kind.random([step, call, rank], OPTIONS["count"] >> 3 * call) for rank in range(SIZE)] for call in range(3)]
    mine = [arrays[RANK].copy() for arrays in calls]
    for work in [comm.all_reduce(x, op, async_op=True) for x in mine]:
        work.wait()
    for call, arrays in enumerate(calls):
        check(kind, f"step {step} call {call}", mine[call], expected_sum(kind, arrays, op))
    say("step", step=step)
comm.close()
say("done")
"""


def test_two_jobs_at_once_do_not_disturb_each_other(make_lab):
    lab = e2e.start(make_lab)
    ranks = e2e.start_ranks(lab, CHECKED_LOOP, steps=40, count=30_011)
    ranks[0].said("step")
    generators = [e2e.pktgen(lab, site.workers[1], "--workers", 2, "--size", 4, "--first-rank", 2 * i, "--groups", 2,
                             "--elements", 100_003, "--calls", 20, name=f"pktgen-{site.name}")
                  for i, site in enumerate(lab.sites)]
    site = lab.sites[0]
    together = e2e.wait_until("both jobs run", lambda: {"e2e", "pktgen"} <= {g["job"] for g in e2e.groups(lab, site)
                                                                            if g["state"] == "running"})
    assert together
    reports = [e2e.pktgen_report(generator, 90) for generator in generators]
    e2e.wait(ranks, 90)
    # 2 groups × 20 calls × 2 ranks × 100,003 elements at each site
    assert [report["elements_checked"] for report in reports] == [2 * 20 * 2 * 100_003] * 2
    assert all(len(rank.all_said("step")) == 40 for rank in ranks)
    e2e.finish(lab)


def test_the_second_job_goes_on_when_the_first_fails(make_lab):
    lab = e2e.start(make_lab)
    ranks = e2e.start_ranks(lab, CHECKED_LOOP, steps=25, count=20_003)
    bad = e2e.start_ranks(lab, """
comm = join()
say("error", **error_of(lambda: comm.all_reduce(numpy.zeros(5 + RANK, numpy.float32))))
""", job="bad")
    e2e.wait(bad + ranks, 90)
    assert all(rank.said("error")["code"] == "group_failed" for rank in bad)
    assert all(len(rank.all_said("step")) == 25 for rank in ranks)
    e2e.finish(lab)


def test_many_workers_and_groups_in_one_namespace(make_lab):
    # Windows follow the round trip: small ones leave room for six groups.
    lab = e2e.start(make_lab, dataplane="buffers = 32768", peer_rtt="100 us")
    reports = []
    for options in (("--kind", "all_reduce", "--groups", 6), ("--kind", "reduce_scatter", "--groups", 3),
                    ("--kind", "all_gather", "--groups", 3), ("--kind", "broadcast", "--groups", 3),
                    ("--kind", "reduce", "--groups", 3, "--dtype", "int32")):
        # 16 calls: each rank is the root of one.
        generators = [e2e.pktgen(lab, site.workers[0], "--workers", 8, "--size", 16, "--first-rank", 8 * i, "--elements",
                                 16 * 1021, "--calls", 16, "--job", options[1], *options,
                                 name=f"pktgen-{options[1]}-{site.name}")
                      for i, site in enumerate(lab.sites)]
        reports += [e2e.pktgen_report(generator, 90) for generator in generators]
    assert reports[0]["elements_checked"] == 6 * 16 * 8 * 16 * 1021
    e2e.finish(lab)
