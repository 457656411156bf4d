# SPDX-License-Identifier: Apache-2.0
"""Every collective, every type, through real gateways: the right bits, on every rank and every time."""
import shutil
import subprocess

import e2e

# One element; nothing; fills no chunk; odd; more than a chunk; more than 64 chunks, so that all lanes are used; and
# with three sites more than 64 KiB, so that all-reduces are sharded.
COUNTS = (1, 0, 7, 201, 1027, 50_021)

EVERY_KIND = """
comm = join()
for dtype in OPTIONS["dtypes"]:
    for count in OPTIONS["counts"]:
        say("digest", dtype=dtype, count=count, digest=every_kind(comm, dtype, count, seed=count + 1))
comm.close()
say("done")
"""


def digests(ranks):
    """{dtype and count: result}, with what every rank gets alike."""
    return [{(one["dtype"], one["count"]): one["digest"] for one in rank.all_said("digest")} for rank in ranks]


def run_every_kind(lab, job, placement=None, dtypes=("float32", "float16", "bfloat16", "int32"), counts=COUNTS):
    ranks = e2e.start_ranks(lab, EVERY_KIND, placement=placement, job=job, dtypes=dtypes, counts=counts)
    e2e.wait(ranks, 120)
    found = digests(ranks)
    assert all(len(one) == len(dtypes) * len(counts) for one in found)
    return found


def test_every_kind_type_and_size_at_two_sites_with_the_same_bits_twice(make_lab):
    lab = e2e.start(make_lab)
    first = run_every_kind(lab, "first")
    assert run_every_kind(lab, "again") == first
    # Ranks of a site need not be neighbours.
    a, b = (site.workers for site in lab.sites)
    run_every_kind(lab, "interleaved", [b[0], a[0], b[1], a[1]], counts=(201, 50_021))
    if shutil.which("promtool"):
        status, text = lab.http(lab.sites[0].namespace, lab.sites[0].gateway + "/metrics")
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        assert status == 200 and checked.returncode == 0, checked.stdout + checked.stderr
    e2e.finish(lab)


def test_one_site_alone(make_lab):
    lab = e2e.start(make_lab, sites=1, workers=2)
    assert lab.get(lab.sites[0], "/v1/status")["peers"] == []
    workers = lab.workers
    run_every_kind(lab, "pair")
    run_every_kind(lab, "four", [workers[0], workers[1], workers[1], workers[0]], counts=(1, 201, 50_021))
    run_every_kind(lab, "single", [workers[0]], dtypes=("float32", "bfloat16"), counts=(0, 1, 1027))
    e2e.finish(lab)


def test_three_sites_exchange_and_sharded(make_lab):
    lab = e2e.start(make_lab, sites=3, workers=1)
    first = run_every_kind(lab, "first")
    assert run_every_kind(lab, "again", dtypes=("float32", "bfloat16"), counts=(201, 50_021)) == [
        {key: value for key, value in one.items() if key[0] in ("float32", "bfloat16") and key[1] in (201, 50_021)}
        for one in first]
    e2e.finish(lab)


BIG = """
kind = element_type("float32")
COUNT, BLOCK = OPTIONS["count"], 1 << 22

def block(rank, number):
    return kind.random([99, rank, number], min(BLOCK, COUNT - number * BLOCK))

data = numpy.empty(COUNT, numpy.float32)
for number in range((COUNT + BLOCK - 1) // BLOCK):
    data[number * BLOCK:number * BLOCK + BLOCK] = block(RANK, number)
comm = join()
begin = time.monotonic()
comm.all_reduce(data)
seconds = time.monotonic() - begin
stats = comm.stats()
comm.close()
for number in range((COUNT + BLOCK - 1) // BLOCK):
    expected = expected_sum(kind, [block(rank, number) for rank in range(SIZE)])
    check(kind, f"block {number}", data[number * BLOCK:number * BLOCK + BLOCK], expected)
say("done", seconds=seconds, stats=stats)
"""


def test_256_mib(make_lab):
    lab = e2e.start(make_lab, capture=False)
    ranks = e2e.start_ranks(lab, BIG, count=64 << 20)
    e2e.wait(ranks, 240)
    for rank in ranks:
        said = rank.said("done")
        print(f"rank {rank.number}: 256 MiB in {said['seconds']:.1f} s, {said['stats']}")
        assert said["stats"]["bytes_received"] > 256 << 20
    e2e.finish(lab)
