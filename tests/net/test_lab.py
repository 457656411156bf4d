# SPDX-License-Identifier: Apache-2.0
"""The lab itself: what the other network tests stand on."""
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import tomllib

import pytest

import lab as lab_module
import lab_machine
from lab_machine import inside

HERE = os.path.dirname(os.path.abspath(__file__))


def udp_socket(namespace, address):
    def make():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((address, 0))
        made.settimeout(5)
        return made

    return inside(namespace, make)


def ping(namespace, address):
    done = subprocess.run(["ip", "netns", "exec", namespace, "ping", "-c", "1", "-W", "5", "-q", address],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"{namespace} does not reach {address}: {done.stdout}{done.stderr}"


def ones_complement(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[:len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def udp_checksum_is_valid(frame):
    """frame: Ethernet, IPv4 without options, UDP. A checksum of 0 (none) does not count."""
    udp_length = struct.unpack_from("!H", frame, 38)[0]
    pseudo_header = frame[26:34] + struct.pack("!HH", 17, udp_length)
    return frame[40:42] != b"\0\0" and ones_complement(pseudo_header + frame[34:34 + udp_length]) == 0xFFFF


def test_everyone_reaches_its_neighbours(lab):
    for site in lab.sites:
        for worker in site.workers:
            ping(worker.namespace, site.lan_address)
    ping(lab.sites[0].namespace, lab.sites[1].wan_address)


def test_a_full_size_datagram_arrives_with_a_valid_checksum(lab):
    for site in lab.sites:
        tap = inside(site.namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)))
        receiver = udp_socket(site.namespace, site.lan_address)
        with tap, receiver:
            tap.bind(("lan", 0x0800))
            tap.settimeout(5)
            for worker in site.workers:
                payload = os.urandom(lab.lan_mtu - 28)
                with udp_socket(worker.namespace, worker.address) as sender:
                    sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: no fragments
                    sender.sendto(payload, receiver.getsockname())
                    data, source = receiver.recvfrom(65536)
                    assert data == payload and source == sender.getsockname()
                frame = tap.recv(65536)
                while frame[23] != 17:
                    frame = tap.recv(65536)
                assert len(frame) == lab.lan_mtu + 14
                assert udp_checksum_is_valid(frame)


def test_segmented_datagrams_reach_the_gateway_with_valid_checksums(lab):
    worker, site = lab.workers[0], lab.sites[0]
    tap = inside(site.namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)))
    with tap, udp_socket(site.namespace, site.lan_address) as receiver:
        tap.bind(("lan", 0x0800))
        tap.settimeout(5)
        with udp_socket(worker.namespace, worker.address) as sender:
            sender.setsockopt(socket.SOL_UDP, 103, 1000)  # UDP_SEGMENT
            sender.sendto(os.urandom(8000), receiver.getsockname())
            for _ in range(8):
                assert len(receiver.recv(65536)) == 1000
        for _ in range(8):
            assert udp_checksum_is_valid(tap.recv(65536))


def test_a_worker_receives_coalesced_datagrams(lab):
    """One attempt may find the NAPI awake between two frames, so several are allowed."""
    worker, site = lab.workers[0], lab.sites[0]
    with udp_socket(site.namespace, site.lan_address) as sender, udp_socket(worker.namespace, worker.address) as receiver:
        sender.setsockopt(socket.SOL_UDP, 103, 1000)  # UDP_SEGMENT
        receiver.setsockopt(socket.SOL_UDP, 104, 1)  # UDP_GRO
        largest = 0
        for _ in range(50):
            sender.sendto(bytes(16000), receiver.getsockname())
            left = 16000
            while left:
                message = receiver.recv(65536)
                largest = max(largest, len(message))
                left -= len(message)
    assert largest >= 4000


def test_workers_can_have_large_socket_buffers(lab):
    worker = lab.workers[0]
    with udp_socket(worker.namespace, worker.address) as made:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, lab_machine.SOCKET_BUFFER_BYTES)
            # The kernel reports twice what it grants.
            assert made.getsockopt(socket.SOL_SOCKET, option) == 2 * lab_machine.SOCKET_BUFFER_BYTES


def test_workers_have_gro_and_threaded_napi_and_no_ipv6(lab):
    worker = lab.workers[-1]
    process = lab.run(worker.namespace, ["sh", "-c", "cat /sys/class/net/veth0/threaded; ethtool -k veth0; ip -6 address"],
                      name="features")
    assert process.wait(10) == 0
    text = process.output()
    assert text.startswith("1\n")
    assert "generic-receive-offload: on" in text and "tx-checksumming: off" in text
    assert "inet6" not in text


def test_a_process_is_awaited_by_its_lines_and_stopped(lab):
    process = lab.run(lab.workers[0].namespace, ["sh", "-c", "echo ready; exec sleep 1000"], name="sleeper")
    process.wait_for_line("^ready$", 10)
    with pytest.raises(lab_module.LabError, match="sleeper printed no line with 'never'"):
        process.wait_for_line("never", 0.05)
    assert process.stop(10) == -signal.SIGTERM
    with pytest.raises(lab_module.LabError, match="ended with status"):
        process.wait_for_line("never", 10)


def test_http_inside_a_namespace(lab):
    site = lab.sites[0]
    server = lab.run(site.namespace, [sys.executable, "-c", textwrap.dedent("""
        import http.server, json
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = json.dumps({"path": self.path, "got": json.loads(body)}).encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
        server = http.server.HTTPServer(("0.0.0.0", 9470), Handler)
        print("ready", flush=True)
        server.serve_forever()
    """)], name="server")
    server.wait_for_line("ready", 20)
    assert lab.http(site.workers[1].namespace, site.gateway + "/v1/x", {"a": 1}) == (201, {"path": "/v1/x", "got": {"a": 1}})


def test_capture_sees_both_directions(lab):
    site = lab.sites[0]
    capture = lab.capture(site, "lan", "icmp")
    ping(site.workers[0].namespace, site.lan_address)
    wanted = 24 + 2 * (16 + 98)  # the file's header, two records of 98 bytes
    end = time.monotonic() + 10
    while os.path.getsize(capture.pcap) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    assert capture.stop(10) == 0
    assert os.path.getsize(capture.pcap) == wanted


def test_site_files(lab):
    with open(lab.write_site_file(lab.sites[0]), "rb") as file:
        document = tomllib.load(file)
    assert [port["name"] for port in document["port"]] == ["lan", "wan"]
    assert document["peer"][0]["control"] == "198.51.100.2:9470"
    with open(lab.write_site_file(lab.sites[0], peers=[]), "rb") as file:
        document = tomllib.load(file)
    assert [port["name"] for port in document["port"]] == ["lan"] and "peer" not in document


def test_loss_and_rate_on_the_wan(make_lab):
    if not any(os.access(os.path.join(place, "nft"), os.X_OK) for place in ("/usr/sbin", "/sbin", "/usr/bin")):
        pytest.skip("nft is missing (sudo deploy/install-deps.sh)")
    made = make_lab(workers=1, wan_loss=0.3, wan_rate="200mbit")
    first, second = made.sites
    with udp_socket(first.namespace, first.wan_address) as sender, \
            udp_socket(second.namespace, second.wan_address) as receiver:
        total = 2000
        got = 0
        for _ in range(total // 20):
            for _ in range(20):
                sender.sendto(b"x" * 100, receiver.getsockname())
            receiver.settimeout(0.02)
            try:
                while True:
                    receiver.recv(1000)
                    got += 1
            except TimeoutError:
                pass
    assert 0.55 * total < got < 0.85 * total
    shown = subprocess.run(["tc", "-n", made.wan_namespace, "qdisc", "show", "dev", "s2"], capture_output=True, text=True)
    assert "tbf" in shown.stdout and "rate 200Mbit" in shown.stdout


def test_xdp_pass_on_the_far_ends(make_lab):
    made = make_lab(sites=1, workers=1, xdp_pass=True)
    site = made.sites[0]
    shown = subprocess.run(["ip", "-n", site.bridge_namespace, "link", "show", "dev", "gw"], capture_output=True, text=True)
    assert "xdp" in shown.stdout
    ping(site.workers[0].namespace, site.lan_address)


OWNER = textwrap.dedent("""
    import sys
    sys.path.insert(0, {here!r})
    import lab
    with lab.Lab("owner-%d" % lab.os.getpid(), sites=2, workers=2) as made:
        sleeper = made.run(made.workers[0].namespace, ["sleep", "1000"], name="sleeper")
        print(made.prefix, sleeper.pid, made.out, flush=True)
        {then}
""")


def start_owner(then):
    owner = subprocess.Popen([sys.executable, "-c", OWNER.format(here=HERE, then=then)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)
    prefix, sleeper, out = owner.stdout.readline().split()
    return owner, prefix, int(sleeper), out


def left_of(prefix):
    return [name for name in lab_machine.namespaces() if name.startswith(prefix + "-")]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("ending", ["return", "exception", "exit", "SIGINT", "SIGTERM", "SIGHUP"])
def test_nothing_is_left(namespaces_work, ending):
    limits = [open(path, encoding="ascii").read() for path in lab_machine.SOCKET_LIMITS]
    others = [name for name in os.listdir(lab_machine.STATE_DIR) if name.endswith(".owner")] \
        if os.path.isdir(lab_machine.STATE_DIR) else []
    then = {"return": "pass", "exception": "raise ValueError('as planned')", "exit": "sys.exit(3)"}
    owner, prefix, sleeper, out = start_owner(then.get(ending, "lab.signal.pause()"))
    if ending not in then:
        assert len(left_of(prefix)) == 9
        owner.send_signal(getattr(signal, ending))
    _, errors = owner.communicate(timeout=30)
    assert (owner.returncode == 0) == (ending == "return"), errors
    assert left_of(prefix) == []
    assert not alive(sleeper)
    assert os.path.exists(out) == (ending in ("exception", "exit"))
    if os.path.exists(out):
        shutil.rmtree(out)
    if not others:
        assert [open(path, encoding="ascii").read() for path in lab_machine.SOCKET_LIMITS] == limits


def test_the_next_start_removes_what_a_killed_owner_left_and_nothing_else(make_lab):
    killed, killed_prefix, killed_sleeper, killed_out = start_owner("lab.signal.pause()")
    living, living_prefix, living_sleeper, _ = start_owner("lab.signal.pause()")
    try:
        killed.kill()
        killed.communicate(timeout=30)
        assert len(left_of(killed_prefix)) == 9 and alive(killed_sleeper)
        make_lab(sites=1, workers=1)
        assert left_of(killed_prefix) == [] and not alive(killed_sleeper)
        assert len(left_of(living_prefix)) == 9 and alive(living_sleeper)
    finally:
        shutil.rmtree(killed_out, ignore_errors=True)
        living.terminate()
        _, errors = living.communicate(timeout=30)
    assert left_of(living_prefix) == [], errors
