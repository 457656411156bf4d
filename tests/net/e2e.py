# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: gateways in a lab, ranks in its worker namespaces, and the books that must balance."""
import json
import os
import re
import shutil
import time

import pytest

import lab as lab_module
from lab_machine import LabError

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"  # Debian's, which has numpy and torch
GATEWAY = os.path.join(lab_module.BUILD, "app", "gateway", "gradgate")
PKTGEN = os.path.join(lab_module.BUILD, "pktgen", "gradgate-pktgen")
LIBRARY = os.path.join(lab_module.BUILD, "lib", "client", "libgradgate.so")

# What was not sent says nothing about what was received.
SEND_DROPS = ("no_address", "tx_full")


def need(*paths):
    for path in paths:
        if not os.path.exists(path):
            pytest.skip(f"{path} is not built")


def wait_until(what, function, deadline=10.0):
    """The first true value of function(); AssertionError after deadline seconds."""
    end = time.monotonic() + deadline
    while True:
        value = function()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what}")
        time.sleep(0.02)


# ---- gateways


def write_site_file(lab, site, *, group="", dataplane="", **options):
    """Lab.write_site_file() with further lines for its [dataplane] and a [group] section."""
    if group:
        options["extra"] = f"\n[group]\n{group}\n" + options.get("extra", "")
    path = lab.write_site_file(site, **options)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("[dataplane]\n", f"[dataplane]\n{dataplane}\n"))
    return path


def start(make_lab, *, sites=2, workers=2, capture=True, lab_options=None, **site_options):
    """A lab whose gateways run, with the free buffers of idle gateways in lab.idle. site_options: of
    write_site_file(), for every site."""
    need(GATEWAY, PKTGEN, LIBRARY)
    lab = make_lab(sites=sites, workers=workers, **(lab_options or {}))
    lab.configs = {site.id: write_site_file(lab, site, **site_options) for site in lab.sites}
    if capture and shutil.which("tcpdump"):
        for site in lab.sites:
            for interface in ("lan", "wan"):
                # Headers only; the newest 20 MB.
                lab.capture(site, interface, "-s", "128", "-C", "20", "-W", "1")
    for site in lab.sites:
        lab.start_gateway(site, lab.configs[site.id])
    wait_for_peers(lab)
    lab.idle = {site.id: free_buffers(lab, site) for site in lab.sites}
    return lab


def restart_gateway(lab, site):
    lab.start_gateway(site, lab.configs[site.id])


def wait_for_peers(lab, deadline=15.0):
    for site in lab.sites:
        wait_until(f"all peers of site {site.name} are up",
                   lambda: all(peer["up"] for peer in lab.get(site, "/v1/status")["peers"]), deadline)


def free_buffers(lab, site):
    return {port["name"]: port["buffers_free"] for port in lab.get(site, "/v1/status")["ports"]}


def groups(lab, site):
    return lab.get(site, "/v1/groups")


def wait_for_no_groups(lab, deadline=10.0):
    for site in lab.sites:
        wait_until(f"site {site.name} has no groups", lambda: groups(lab, site) == [], deadline)


# ---- the books


def parse_metrics(text):
    """{(name, ((label, value), …)): number}"""
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, number = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            assert (name, pairs) not in samples, f"{line} stands twice"
            samples[name, pairs] = float(number)
    return samples


def _counts(lab, site):
    """Status, drops and metrics of one moment: nothing was received while they were asked for."""
    def moving(status):
        return (status["counters"]["packets_received"], status["counters"]["frames_received"],
                [(port["rx_packets"], port["xdp_redirected"]) for port in status["ports"]])

    def once():
        before = lab.get(site, "/v1/status")
        drops = lab.get(site, "/v1/drops")
        metrics = parse_metrics(lab.get(site, "/metrics"))
        after = lab.get(site, "/v1/status")
        return (after, drops, metrics) if moving(before) == moving(after) else None

    return wait_until(f"no packets for a moment at site {site.name}", once, 20.0)


def _unbalanced(status, drops, metrics):
    """Which books do not balance, in words."""
    counters, ports = status["counters"], status["ports"]
    faults = []

    def same(left_name, left, right_name, right):
        if left != right:
            faults.append(f"{left_name} = {left}, but {right_name} = {right}")

    packet_drops, frame_drops = sum(drops["packet"].values()), sum(drops["frame"].values())
    port_drops = sum(count for reason, count in drops["port"].items() if reason not in SEND_DROPS)
    same("packets_received", counters["packets_received"], "parsed + dropped",
         counters["packets_parsed"] + packet_drops)
    same("frames_received", counters["frames_received"], "kept + duplicate + past + dropped",
         counters["frames_kept"] + counters["frames_duplicate"] + counters["frames_past"] + frame_drops)
    same("packets received on ports", sum(port["rx_packets"] for port in ports), "given to lanes + dropped on ports",
         counters["packets_received"] + port_drops)
    for port in ports:
        lost = port["xdp_redirected"] - port["rx_packets"] - port["rx_missed"]
        if lost != 0:
            faults.append(f"port {port['name']}: XDP redirected {port['xdp_redirected']} packets, the port received "
                          f"{port['rx_packets']} and missed {port['rx_missed']}")
    for name, value in counters.items():
        same(f"metric {name}", sum(v for (metric, _), v in metrics.items() if metric == f"gradgate_{name}_total"),
             "status", value)
    for where in ("xdp", "port", "packet", "frame"):
        for reason, count in drops[where].items():
            same(f"metric of drops {where} {reason}",
                 metrics["gradgate_drops_total", (("reason", reason), ("where", where))], "/v1/drops", count)
    return faults


def balance(lab, sites=None):
    """Checks the books of every gateway; where no group is left, also that all buffers are back."""
    for site in sites or lab.sites:
        faults = []
        end = time.monotonic() + 10.0
        while True:  # a packet may be between two counters
            status, drops, metrics = _counts(lab, site)
            faults = _unbalanced(status, drops, metrics)
            if not faults or time.monotonic() > end:
                break
        assert not faults, f"the books of site {site.name} do not balance: " + "; ".join(faults)
        if groups(lab, site) == []:
            wait_until(f"buffers of site {site.name} are back: {free_buffers(lab, site)}, idle: {lab.idle[site.id]}",
                       lambda: free_buffers(lab, site) == lab.idle[site.id], 5.0)
            assert status["buffers"]["reserved"] == 0 or lab.get(site, "/v1/status")["buffers"]["reserved"] == 0


def finish(lab):
    """End of a test: no groups, books balanced, gateways drain and exit with 0."""
    wait_for_no_groups(lab)
    balance(lab)
    for site in lab.sites:
        lab.stop_gateway(site)


def drops(lab, site, where):
    return {reason: count for reason, count in lab.get(site, "/v1/drops")[where].items() if count}


# ---- ranks


class Rank:
    """A Python script that is one rank; see e2e_rank.py."""

    def __init__(self, number, worker, process):
        self.number, self.worker, self.process = number, worker, process

    @property
    def pid(self):
        return self.process.pid

    def said(self, event, deadline=30.0):
        """What the first say(event, …) said."""
        match = self.process.wait_for_line(rf'^SAY (\{{"event": "{event}".*)', deadline)
        return json.loads(match.group(1))

    def all_said(self, event):
        return [json.loads(text) for text in re.findall(rf'^SAY (\{{"event": "{event}".*)', self.process.output(), re.M)]


def client_environment():
    return {"PYTHONPATH": os.path.join(lab_module.ROOT, "lib", "client", "python") + ":" + HERE, "GRADGATE_LIBRARY": LIBRARY,
            # One thread a rank: the machine is small.
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start_rank(lab, worker, number, size, code, *, sites=None, job="e2e", group="default", name=None, **changes):
    """Runs `code` after `from e2e_rank import *` in a worker's namespace. sites: site ids by rank."""
    options = {"rank": number, "size": size, "gateway": worker.site.gateway, "tenant": lab_module.TENANT,
               "token": lab_module.TOKEN, "job": job, "group": group, "site_of_rank": sites, **changes}
    process = lab.run(worker.namespace, [PYTHON, "-c", "from e2e_rank import *\n" + code], name=name or f"{job}-rank{number}",
                      env={**client_environment(), "E2E_RANK": json.dumps(options)})
    return Rank(number, worker, process)


def start_ranks(lab, code, *, placement=None, **options):
    """One rank for each worker of `placement` (all workers, site by site), in rank order."""
    placement = placement or lab.workers
    sites = [worker.site.id for worker in placement]
    return [start_rank(lab, worker, number, len(placement), code, sites=sites, **options)
            for number, worker in enumerate(placement)]


def wait(ranks, deadline=60.0):
    """Until all ranks have ended well."""
    lab_module.wait_for_all([rank.process for rank in ranks], deadline)


def pktgen(lab, worker, *argv, name="pktgen"):
    return lab.run(worker.namespace, [PKTGEN, "--gateway", worker.site.gateway, "--tenant", lab_module.TENANT, "--token",
                                      lab_module.TOKEN, "--json", *map(str, argv)], name=name)


def pktgen_report(process, deadline=60.0):
    """The report of a pktgen that must end well with every element right."""
    status = process.wait(deadline)
    line = next((line for line in process.output().splitlines() if line.startswith("{")), None)
    if status != 0 or line is None:
        raise LabError(f"{process.name} ended with status {status}:\n{process.output()[-2000:]}")
    report = json.loads(line)
    assert report["elements_wrong"] == 0 and report["failure"] == "" and report["elements_checked"] > 0
    return report
