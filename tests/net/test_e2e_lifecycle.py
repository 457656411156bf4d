# SPDX-License-Identifier: Apache-2.0
"""Starting, stopping, crashing and refusing to start."""
import os
import shutil
import signal
import subprocess

import pytest

import e2e
import lab as lab_module

STEPS = """
comm = join()
kind = element_type("float32")
total = hashlib.blake2b(digest_size=16)
for step in range(OPTIONS["steps"]):
    arrays = [kind.random([step, rank], OPTIONS["count"]) for rank in range(SIZE)]
    got = comm.all_reduce(arrays[RANK].copy())
    check(kind, f"step {step}", got, expected_sum(kind, arrays))
    total.update(got.tobytes())
    say("step", step=step)
say("done", digest=total.hexdigest(), restarts=comm.stats()["gateway_restarts"])
comm.close()
"""


def xdp_programs(site):
    shown = subprocess.run(["ip", "-n", site.namespace, "-d", "link"], capture_output=True, text=True, check=True).stdout
    return shown.count("prog/xdp")


def run_gateway(lab, site, *argv, before=(), name="refused"):
    process = lab.run(site.namespace, [*before, e2e.GATEWAY, *argv], name=name)
    return process.wait(20), process.output()


def errors(output):
    return [line for line in output.splitlines() if " error " in line]


def test_sigterm_drains_and_detaches_and_sigkill_does_not_hinder_the_next_start(make_lab):
    lab = e2e.start(make_lab, capture=False)
    site = lab.sites[0]
    assert xdp_programs(site) == 2
    lab.kill_gateway(site)
    assert xdp_programs(site) == 2  # what the next start must cope with
    e2e.restart_gateway(lab, site)
    e2e.wait_for_peers(lab)
    e2e.wait(e2e.start_ranks(lab, STEPS, steps=3, count=5003), 60)
    e2e.finish(lab)
    assert [xdp_programs(one) for one in lab.sites] == [0, 0]


@pytest.mark.parametrize("which", [0, 1])
def test_a_job_survives_a_killed_gateway_with_the_same_bits(make_lab, which):
    lab = e2e.start(make_lab)
    ranks = e2e.start_ranks(lab, STEPS, steps=40, count=100_003)
    for rank in ranks:
        rank.process.wait_for_line(r'"step": 5\b', 30)
    site = lab.sites[which]
    lab.kill_gateway(site)
    e2e.restart_gateway(lab, site)
    e2e.wait(ranks, 90)
    said = [rank.said("done") for rank in ranks]
    assert len({one["digest"] for one in said}) == 1
    assert [one["restarts"] for one in said] == [int(rank.worker.site is site) for rank in ranks]
    e2e.finish(lab)


def test_preflight_refuses_in_one_clear_line(make_lab):
    e2e.need(e2e.GATEWAY)
    lab = make_lab(sites=1, workers=1)
    site = lab.sites[0]
    config = lab.write_site_file(site)

    def refused(*parts, before=(), file=config):
        status, output = run_gateway(lab, site, "--config", file, before=before)
        assert status == 3, output
        assert len(errors(output)) == 1, output
        for part in parts:
            assert part in errors(output)[0], output

    def ip(*argv):
        subprocess.run(["ip", "-n", site.namespace, *argv], check=True)

    missing = os.path.join(lab.out, "missing.toml")
    with open(config, encoding="utf-8") as source, open(missing, "w", encoding="utf-8") as target:
        target.write(source.read().replace('device = "lan"', 'device = "nolan"'))
    refused("nolan", "ip -br link", file=missing)
    ip("link", "set", "dev", "lan", "down")
    refused("lan is down", "ip link set dev lan up")
    ip("link", "set", "dev", "lan", "up")
    ip("link", "set", "dev", "lan", "mtu", "9000")
    refused("MTU 9000", "3498")
    ip("link", "set", "dev", "lan", "mtu", "3498")
    if shutil.which("setpriv"):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        status, output = run_gateway(lab, site, "--config", config, before=nobody)
        assert status == 3 and "CAP_NET_ADMIN" in output and "root" in output, output
        status, output = run_gateway(lab, site, "--config", config, "--check-config", before=nobody)
        assert status == 0 and "no faults" in output, output

    holder = lab.run(site.namespace, [e2e.PYTHON, "-c", "import socket, signal\ns = socket.create_server(('0.0.0.0', 9470))\n"
                                      "print('bound', flush=True)\nsignal.pause()"], name="holder")
    holder.wait_for_line("bound", 10)
    refused("9470", "in use")
    holder.signal(signal.SIGKILL)
    holder.wait(5)
    assert xdp_programs(site) == 0

    foreign = os.path.join(lab_module.BUILD, "tests", "bpf", "pass.bpf.o")
    if not os.path.exists(foreign):
        pytest.skip(f"{foreign} is not built: foreign XDP program not tried")
    ip("link", "set", "dev", "lan", "xdpdrv", "obj", foreign, "sec", "xdp")
    refused("lan", "XDP")
    assert xdp_programs(site) == 1
    ip("link", "set", "dev", "lan", "xdpdrv", "off")
    lab.start_gateway(site, config)
    lab.stop_gateway(site)


def test_check_config_prints_every_fault_with_its_line_and_help_and_version(make_lab):
    e2e.need(e2e.GATEWAY)
    lab = make_lab(sites=1, workers=1)
    site = lab.sites[0]
    bad = os.path.join(lab.out, "bad.toml")
    with open(bad, "w", encoding="utf-8") as file:
        file.write('[site]\nname = "a"\nid = 70000\n[[port]]\nname = "lan"\ndevice = "lan"\nmtu = 9000\n'
                   '[dataplane]\nlanes = 3\ncolour = "red"\n[control]\nlisten = "0.0.0.0:9470"\n')
    status, output = run_gateway(lab, site, "--config", bad, "--check-config")
    assert status == 1
    for place, what in (("3", "id"), ("7", "mtu"), ("9", "lanes"), ("10", "colour")):
        assert any(f"bad.toml:{place}:" in line and what in line for line in output.splitlines()), output
    status, output = run_gateway(lab, site, "--version")
    assert status == 0 and output.startswith("gradgate ")
    status, output = run_gateway(lab, site, "--help")
    assert status == 0 and "--check-config" in output and "site-afxdp.toml" in output
    assert run_gateway(lab, site, "--nonsense")[0] == 2
