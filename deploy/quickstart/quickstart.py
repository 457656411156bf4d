# SPDX-License-Identifier: Apache-2.0
"""The body of deploy/quickstart.sh: two sites of two workers, two gateways, one training job, one table."""
import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "net"))
import lab as lab_module  # noqa: E402
from lab_machine import LabError  # noqa: E402

SITES, WORKERS_PER_SITE = 2, 2
# A step takes about a second; a worker whose gateway fails is told long before.
START_SECONDS, STEP_SECONDS = 120, 30


def train(lab, steps, seed=1, name="train", on_line=None):
    """Runs the training job on all workers of a lab whose gateways run; the ranks' result documents, in order."""
    ranks = []
    for rank, worker in enumerate(lab.workers):
        out = os.path.join(lab.out, f"{name}-{rank}.json")
        argv = ["/usr/bin/python3", os.path.join(HERE, "train.py"), "--backend", "gradgate", "--steps", str(steps),
                "--seed", str(seed), "--rank", str(rank), "--size", str(len(lab.workers)), "--gateway",
                worker.site.gateway, "--tenant", lab_module.TENANT, "--token", lab_module.TOKEN, "--job", name, "--out", out]
        ranks.append((lab.run(worker.namespace, argv, name=f"{name}-rank{rank}", env=client_environment(),
                              on_line=on_line if rank == 0 else None), out))
    lab_module.wait_for_all([process for process, _ in ranks], START_SECONDS + STEP_SECONDS * steps)
    results = []
    for _, out in ranks:
        with open(out, encoding="utf-8") as file:
            results.append(json.load(file))
    return results


def client_environment():
    return {"PYTHONPATH": os.path.join(ROOT, "lib", "client", "python"),
            "GRADGATE_LIBRARY": os.path.join(lab_module.BUILD, "lib", "client", "libgradgate.so")}


def drops_by_reason(document):
    """{"reason (packet|frame|port|xdp)": count} of a /v1/drops document, zeros left out."""
    return {f"{reason} ({place})": count for place in ("packet", "frame", "port", "xdp")
            for reason, count in document.get(place, {}).items() if count}


def in_bytes(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def table(rows):
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"  {name:{width}}  " + "  ".join(f"{cell:>14}" for cell in cells) for name, *cells in rows)


def report(lab, results, statuses, drops, samples):
    """The closing table. DESIGN section 13: per site and direction a flat ring over N workers moves 2(N-1)/N·V over the
    WAN, two gateways that exchange partials V."""
    first = results[0]
    seconds = sum(first["step_seconds"])
    workers, sites = len(lab.workers), len(lab.sites)
    loss_bytes = 4
    steps = len(first["losses"])
    gradients = steps * (first["gradient_bytes_per_step"] + loss_bytes)
    parameters = 4 * first["parameters"]  # broadcast once: leaves one site, with a ring and with gateways
    ring = sites * 2 * (workers - 1) * gradients // workers + (sites - 1) * parameters
    per_site = [status.get("counters", {}) for status in statuses]

    def row(title, key, show):
        return [title, *(show(counter[key]) if key in counter else "not reported" for counter in per_site)]

    rows = [["", *(f"site {site.name}" for site in lab.sites)],
            row("bytes summed (contributions in)", "bytes_summed", in_bytes),
            row("chunks summed", "chunks_summed", str),
            row("chunks/s, over all steps", "chunks_summed", lambda count: f"{count / seconds:.0f}"),
            row("WAN bytes sent", "wan_bytes_sent", in_bytes),
            row("WAN bytes received", "wan_bytes_received", in_bytes),
            ["packets and frames dropped", *(str(sum(drop.values())) for drop in drops)]]
    reasons = sorted({reason for drop in drops for reason in drop})
    rows += [[f"  {reason}", *(str(drop.get(reason, 0)) for drop in drops)] for reason in reasons]
    rows.append(["metrics at /metrics", *(str(sample) for sample in samples)])
    text = table(rows)
    text += (f"\n\n  {steps} steps in {seconds:.1f} s ({seconds / steps:.2f} s/step), "
             f"loss {first['losses'][0]:.3f} -> {first['losses'][-1]:.3f}")
    if all("wan_bytes_sent" in counter for counter in per_site):
        sent = sum(counter["wan_bytes_sent"] for counter in per_site)
        text += (f"\n  WAN, all sites: {in_bytes(sent)} sent, link headers and acknowledgements included. A flat ring over "
                 f"{workers} workers sends {in_bytes(ring)} of payload\n  (2(N-1)/N of the gradients per site, and the "
                 f"parameters once): {in_bytes(abs(ring - sent))} {'saved' if sent < ring else 'MORE'} "
                 f"({abs(1 - sent / ring):.0%})")
    return text


def count_samples(text):
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def quickstart(steps):
    with lab_module.Lab("quickstart", sites=SITES, workers=WORKERS_PER_SITE) as lab:
        print(f"quickstart: {SITES} sites of {WORKERS_PER_SITE} workers in network namespaces {lab.prefix}-*", flush=True)
        for site in lab.sites:
            lab.start_gateway(site)
            print(f"quickstart: gateway {site.name} is ready (LAN {site.lan_address}, WAN {site.wan_address})", flush=True)
        results = train(lab, steps, on_line=lambda line: print(line, end="", flush=True))
        statuses = [lab.get(site, "/v1/status") for site in lab.sites]
        drops = [drops_by_reason(lab.get(site, "/v1/drops")) for site in lab.sites]
        samples = [count_samples(lab.get(site, "/metrics")) for site in lab.sites]
        print("\n" + report(lab, results, statuses, drops, samples), flush=True)
        digests = {result["sha256"] for result in results}
        if len(digests) != 1:
            raise LabError("the ranks' parameters differ: " + ", ".join(sorted(digests)))
        print(f"  all {len(results)} ranks hold the same parameters, SHA-256 {digests.pop()[:16]}…", flush=True)
        for site in lab.sites:
            lab.stop_gateway(site)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    reason = lab_module.unavailable()
    if reason:
        sys.exit(f"quickstart: {reason}")
    try:
        quickstart(steps)
    except KeyboardInterrupt:
        print("\nquickstart: interrupted; namespaces and programs are removed", file=sys.stderr)
        return 130
    except LabError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
