# SPDX-License-Identifier: Apache-2.0
"""Hostile and foreign packets on the gateway's interface while a job runs."""
import hashlib
import random
import signal
import socket
import struct
import threading
import time

import e2e
from lab_machine import inside

PACKETS = 100_000
BURST = 1000  # less than the socket's ring: what comes back must be counted before the next one goes
UDP_PORT, LANES = 9472, 4

UNTIL_TOLD = """
import signal
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
comm = join()
kind = element_type("float32")
for step in range(1 << 30):
    arrays = [kind.random([step % 16, rank], OPTIONS["count"]) for rank in range(SIZE)]
    got = comm.all_reduce(arrays[RANK].copy())
    check(kind, f"step {step}", got, expected_sum(kind, arrays))
    say("step", step=step)
    # All ranks stop after the same step.
    if comm.all_reduce(numpy.array([len(stop)], numpy.int32))[0]:
        break
comm.close()
say("done", steps=step + 1)
"""


def read_pcap(path):
    with open(path, "rb") as file:
        data = file.read()
    packets, at = [], 24
    while at + 16 <= len(data):
        kept = struct.unpack_from("<I", data, at + 8)[0]
        if at + 16 + kept > len(data):
            break
        packets.append(data[at + 16:at + 16 + kept])
        at += 16 + kept
    return packets


def flip(packet, randomness, begin, end=None):
    out = bytearray(packet)
    bit = randomness.randrange(8 * begin, 8 * (end or len(out)))
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def put(packet, at, content):
    return packet[:at] + content + packet[at + len(content):]


def udp_frame(like, payload, port):
    """An Ethernet frame with the addresses of `like` and a payload of our own; the gateway trusts no UDP checksum."""
    ip = bytearray(like[14:34])
    struct.pack_into(">H", ip, 2, 28 + len(payload))
    return like[:14] + bytes(ip) + like[34:36] + struct.pack(">HHH", port, 8 + len(payload), 0) + payload


# Each makes one packet that is ours, by its destination port, and that nobody may accept. Offsets: Ethernet 14, IPv4 20,
# UDP 8, so that the link header stands at 42: magic 42, flags 44, lane 45, label 46, number 50, link 54, frames 58.
def replayed(r, p): return p
def flipped_link(r, p): return flip(p, r, 42, 58)
def flipped_frame(r, p): return flip(p, r, 58)
def truncated(r, p): return p[:r.randrange(42, len(p))]
def shortened(r, p): return udp_frame(p, p[42:r.randrange(42, len(p))], struct.unpack_from(">H", p, 36)[0])
def wrong_label(r, p): return put(p, 46, r.randbytes(4))
def wrong_link(r, p): return put(p, 54, r.randbytes(4))
def wrong_lane(r, p): return put(p, 45, bytes([r.randrange(256)]))
def wrong_port(r, p): return put(p, 36, struct.pack(">H", UDP_PORT + r.randrange(64)))
def wrong_source(r, p): return put(p, 34, r.randbytes(2))
def wrong_address(r, p): return put(p, 29, bytes([r.randrange(2, 10)]))
def fragment(r, p): return put(p, 20, b"\x20\x00")
def bad_length(r, p): return put(p, 38, r.randbytes(2))
def noise(r, p): return udp_frame(p, r.randbytes(r.randrange(0, 1400)), UDP_PORT + r.randrange(64))
def noise_with_magic(r, p): return udp_frame(p, b"GG\x07" + r.randbytes(r.randrange(0, 600)), UDP_PORT + r.randrange(LANES))
def ethernet(r, p): return p[:12] + b"\x88\xb5" + p[34:]


OURS = (replayed, flipped_link, flipped_frame, truncated, shortened, wrong_label, wrong_link, wrong_lane, wrong_port,
        wrong_source, wrong_address, fragment, bad_length, noise, noise_with_magic, ethernet)


def anything(randomness, packet):
    """May turn into a packet that is not ours."""
    if randomness.random() < 0.3:
        return packet[:12] + randomness.randbytes(randomness.randrange(2, 400))
    out = packet
    for _ in range(randomness.randrange(1, 6)):
        out = flip(out, randomness, 12)
    return out


class Counted:
    """What a gateway has counted of the packets on its interfaces."""

    def __init__(self, lab, site):
        status, drops = lab.get(site, "/v1/status"), lab.get(site, "/v1/drops")
        self.reasons = {(where, reason): count for where in ("xdp", "port", "packet", "frame")
                        for reason, count in drops[where].items() if reason not in e2e.SEND_DROPS}
        self.dropped = sum(self.reasons.values())
        self.passed = sum(port["xdp_passed"] for port in status["ports"])

    def since(self, before):
        return {key: count - before.reasons[key] for key, count in self.reasons.items() if count != before.reasons[key]}


def send_all(lab, site, sender, packets, with_passed):
    """Sends in bursts; each must have been counted before the next. Returns the count of what was counted."""
    begin = Counted(lab, site)

    def counted():
        now = Counted(lab, site)
        return now.dropped - begin.dropped + (now.passed - begin.passed if with_passed else 0)

    sent = 0
    while sent < len(packets):
        for packet in packets[sent:sent + BURST]:
            sender.send(packet)
        sent = min(sent + BURST, len(packets))
        e2e.wait_until(f"all {sent} packets are counted, {counted()} are", lambda: counted() >= sent, 10)
    return counted(), Counted(lab, site).since(begin)


def test_100000_hostile_packets_while_a_job_runs(make_lab):
    lab = e2e.start(make_lab, capture=False)
    site = lab.sites[0]
    ranks = e2e.start_ranks(lab, UNTIL_TOLD, count=20_011)
    ranks[0].said("step")
    capture = lab.capture(site, "lan", "-s", "0", "-c", "2000", "udp", "dst", "portrange",
                          f"{UDP_PORT}-{UDP_PORT + LANES - 1}")
    capture.wait(30)
    captured = [packet for packet in read_pcap(capture.pcap) if len(packet) >= 86]
    assert len(captured) > 1000
    randomness = random.Random(5)
    sender = inside(site.workers[1].namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    sender.bind((site.workers[1].interface, 0))
    sent = {kind: 0 for kind in OURS}
    hostile = []
    while len(hostile) < PACKETS * 4 // 5:
        kind = OURS[len(hostile) % len(OURS)]
        hostile.append(kind(randomness, randomness.choice(captured)))
        sent[kind] += 1
    steps = len(ranks[0].all_said("step"))
    total, reasons = send_all(lab, site, sender, hostile, with_passed=False)
    print(f"{len(hostile)} packets of ours: {reasons}")
    assert total == len(hostile)
    names = {reason for _, reason in reasons}
    assert {"truncated", "fragment", "bad_udp_length", "bad_magic", "bad_version", "bad_lane", "bad_label", "unknown_link",
            "wrong_source", "bad_trailer", "duplicate_number"} <= names, names
    others = [anything(randomness, randomness.choice(captured)) for _ in range(PACKETS - len(hostile))]
    total, reasons = send_all(lab, site, sender, others, with_passed=True)
    print(f"{len(others)} packets of any kind: {total} dropped or left to the kernel, {reasons}")
    assert len(others) <= total < len(others) + 200  # the kernel's own ARP and TCP besides
    sender.close()
    e2e.wait_until("the job goes on", lambda: len(ranks[0].all_said("step")) > steps, 10)
    for rank in ranks:
        rank.process.signal(signal.SIGUSR1)
    e2e.wait(ranks, 30)
    e2e.finish(lab)


def serve_tcp(server, outcome):
    connection, _ = server.accept()
    digest = hashlib.blake2b()
    with connection:
        while data := connection.recv(1 << 16):
            digest.update(data)
    outcome.append(digest.hexdigest())


def test_ping_and_tcp_through_the_same_interface_while_gradients_flow(make_lab):
    lab = e2e.start(make_lab)
    site = lab.sites[0]
    worker = site.workers[1]
    ranks = e2e.start_ranks(lab, UNTIL_TOLD, count=100_003)
    ranks[0].said("step")
    ping = lab.run(worker.namespace, ["ping", "-n", "-i", "0.05", "-c", "40", "-W", "2", site.lan_address], name="ping")
    server = inside(site.namespace, lambda: socket.create_server((site.lan_address, 5001)))
    outcome = []
    thread = threading.Thread(target=serve_tcp, args=(server, outcome), daemon=True)
    thread.start()
    content = random.Random(3).randbytes(1 << 20)
    wanted = hashlib.blake2b()
    begin = time.monotonic()
    steps = len(ranks[0].all_said("step"))
    with inside(worker.namespace, lambda: socket.create_connection((site.lan_address, 5001), 10)) as client:
        for _ in range(64):
            client.sendall(content)
            wanted.update(content)
    thread.join(30)
    server.close()
    assert outcome == [wanted.hexdigest()]
    print(f"64 MiB by TCP in {time.monotonic() - begin:.2f} s")
    assert ping.wait(20) == 0 and "40 received" in ping.output()
    e2e.wait_until("gradients flow too", lambda: len(ranks[0].all_said("step")) > steps, 10)
    for rank in ranks:
        rank.process.signal(signal.SIGUSR1)
    e2e.wait(ranks, 30)
    e2e.finish(lab)
