# SPDX-License-Identifier: Apache-2.0
"""Gateways that speak the `ethernet` modality to each other: no IP between them, workers on udp4 as always."""
import e2e


def test_partial_sums_cross_a_wan_without_ip(make_lab):
    lab = e2e.start(make_lab, modality="ethernet", chunk="2048 B")
    generators = [e2e.pktgen(lab, site.workers[0], "--workers", 2, "--size", 4, "--first-rank", 2 * i, "--elements", 50_021,
                             "--calls", 20, name=f"pktgen-{site.name}") for i, site in enumerate(lab.sites)]
    reports = [e2e.pktgen_report(generator, 60) for generator in generators]
    assert [report["elements_checked"] for report in reports] == [20 * 2 * 50_021] * 2
    for site in lab.sites:
        counters = lab.get(site, "/v1/status")["counters"]
        assert counters["wan_bytes_sent"] > 20 * 50_021 * 4
    e2e.finish(lab)
