# SPDX-License-Identifier: Apache-2.0
"""The packets of the parser's table as others read them: scapy and tshark find nothing wrong with them.

The helper that writes them is built by meson; GRADGATE_BUILD names the build directory (default: build/).
"""

import os
import pathlib
import shutil
import struct
import subprocess

import pytest

scapy = pytest.importorskip("scapy.all", reason="needs Debian's python3-scapy and /usr/bin/python3")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GRADGATE_BUILD", ROOT / "build"))
BASE_PORT = 9472


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """(pcap file, names of its packets)."""
    helper = BUILD / "tests/bpf/emit_packets"
    if not helper.exists():
        pytest.skip(f"{helper} is not built; GRADGATE_BUILD names the build directory")
    path = tmp_path_factory.mktemp("wire") / "good.pcap"
    out = subprocess.run([helper, path], check=True, capture_output=True, text=True).stdout
    return path, out.splitlines()


def tshark(path, *arguments):
    if not shutil.which("tshark"):
        pytest.skip("needs tshark")
    # Without -n tshark asks the name service about every address.
    command = ["tshark", "-n", "-r", path, "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_scapy_computes_the_same_checksums_and_lengths(capture):
    path, names = capture
    packets = scapy.rdpcap(str(path))
    assert len(packets) == len(names) > 10
    for packet, name in zip(packets, names):
        # scapy takes the IP length for the UDP length in its pseudo header, so it cannot judge where they differ; the
        # kernel and tshark (below) follow RFC 768.
        if name.startswith("ethernet") or "beyond the UDP length" in name:
            continue
        rebuilt = packet.copy()
        for layer, fields in ((scapy.IP, ("chksum", "ihl", "len")), (scapy.UDP, ("chksum", "len"))):
            for field in fields:
                delattr(rebuilt[layer], field)
        assert bytes(rebuilt) == bytes(packet), name
        assert packet[scapy.IP].flags == "DF", name


def test_scapy_reads_the_headers_where_they_belong(capture):
    path, names = capture
    for packet, name in zip(scapy.rdpcap(str(path)), names):
        if name.startswith("ethernet"):
            assert packet.type == 0x88B5, name
            raw = bytes(packet)[14:]
            port, length, checksum = struct.unpack("!HHH", raw[2:8])
            link = raw[8:length]
            assert checksum == 0, name
        else:
            port, length = packet[scapy.UDP].dport, packet[scapy.UDP].len
            link = bytes(packet[scapy.UDP].payload)[: length - 8]
        magic, flags, lane, label, number, link_id = struct.unpack("!HBBIII", link[:16])
        assert (magic, flags >> 6, number, link_id) == (0x4747, 0, 0x01020304, 0xA0B0C0D0), name
        assert (lane, label >> 20) == (port - BASE_PORT, 1), name


def test_tshark_finds_valid_checksums_and_nothing_malformed(capture):
    path, names = capture
    rows = tshark(path, "-T", "fields", "-E", "separator=,", "-e", "ip.checksum.status", "-e", "udp.checksum.status",
                  "-e", "_ws.malformed").splitlines()  # fmt: skip
    assert len(rows) == len(names)
    for row, name in zip(rows, names):
        # 1 is "good", 2 "unverified", 0 "bad"; nothing where the layer is not there.
        assert row == (",," if name.startswith("ethernet") else "1,1,"), name
    assert "Malformed" not in tshark(path, "-V")
