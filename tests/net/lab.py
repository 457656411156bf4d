# SPDX-License-Identifier: Apache-2.0
"""Sites, workers and a WAN in network namespaces of one machine; gone again whatever happens.

    worker namespaces      bridge namespace      gateway namespace          WAN namespace
    gg<pid>-w<s>.<w> veth0 ─ w<w> ┐
    gg<pid>-w<s>.<w> veth0 ─ w<w> ┤ gg<pid>-br<s> gw ─ lan  gg<pid>-gw<s>  wan ─ s<s> ┐ gg<pid>-wan
                                                                                      └ … the other sites

Workers share one gateway interface because an AF_XDP port on veth is one queue of one device. Site s has LAN
10.<s>.0.0/24 (gateway .1, workers .10, .11, …) and WAN address 198.51.100.<s>/24. The standard library only.
"""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from lab_machine import LabError, attach_xdp_pass, batch, claim, command, inside, release, write_if_there

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("GRADGATE_BUILD", os.path.join(ROOT, "build"))
CONTROL_PORT = 9470
TENANT = "lab"
TOKEN = "lab-token-0123"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: unwinds like Ctrl-C, also through pytest, which survives a SystemExit."""


def unavailable():
    """Why no lab can be built here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "ethtool", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is missing (sudo deploy/install-deps.sh)"
    probe = f"gg{os.getpid()}x0-probe"
    try:
        command(["ip", "netns", "add", probe])
        try:
            command(["ip", "netns", "exec", probe, "true"])
            command(["ip", "-n", probe, "link", "add", "name", "a", "type", "veth", "peer", "name", "b"])
        finally:
            command(["ip", "netns", "del", probe])
    except LabError as error:
        return str(error)
    return None


class Process:
    """A program in a namespace. Its output goes to log_path and, line by line, to wait_for_line()."""

    def __init__(self, name, argv, log_path, env=None, cwd=None, on_line=None):
        self.name = name
        self.argv = argv
        self.log_path = log_path
        self._lines = []
        self._ended = False
        self._changed = threading.Condition()
        self._on_line = on_line
        # Own session: Ctrl-C reaches only the lab, which then stops its programs in order.
        self._popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, cwd=cwd,
                                       start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._popen.pid

    @property
    def returncode(self):
        """Exit status, minus the signal that killed it, or None while it runs."""
        return self._popen.poll()

    def output(self):
        with self._changed:
            return "".join(self._lines)

    def wait_for_line(self, pattern, deadline=30.0):
        """The match of the first output line, past or future, that contains pattern (seconds)."""
        expression = re.compile(pattern)
        end = time.monotonic() + deadline
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    match = expression.search(line)
                    if match:
                        return match
                seen = len(self._lines)
                if self._ended:
                    self._fail(f"ended with status {self._popen.wait()} before a line with {pattern!r}")
                left = end - time.monotonic()
                if left <= 0:
                    self._fail(f"printed no line with {pattern!r} within {deadline:g} s")
                self._changed.wait(left)

    def wait(self, deadline=60.0):
        """Exit status; LabError if it still runs after deadline seconds."""
        try:
            status = self._popen.wait(deadline)
        except subprocess.TimeoutExpired:
            self._fail(f"still runs after {deadline:g} s")
        self._reader.join(1.0)
        return status

    def signal(self, number):
        if self._popen.poll() is None:
            self._popen.send_signal(number)

    def stop(self, deadline=10.0):
        """SIGTERM; exit status. Past the deadline: SIGKILL and LabError."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(deadline)
        except LabError:
            self.kill()
            raise

    def kill(self):
        """SIGKILL to the program and what it started."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        status = self._popen.wait()
        self._reader.join(1.0)
        return status

    def _read(self):
        with open(self.log_path, "w", encoding="utf-8", errors="replace") as log:
            for raw in self._popen.stdout:
                line = raw.decode("utf-8", "replace")
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
                if self._on_line:
                    self._on_line(line)
        self._popen.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _fail(self, what):
        tail = "".join(self._lines[-15:])
        raise LabError(f"{self.name} {what}; log: {self.log_path}\n{tail}".rstrip())


def wait_for_all(processes, deadline):
    """Waits until all have ended with status 0; LabError as soon as one fails, since the others then wait in vain."""
    changed = threading.Condition()

    def watch(process):
        process._popen.wait()
        with changed:
            changed.notify_all()

    for process in processes:
        threading.Thread(target=watch, args=(process,), daemon=True).start()
    end = time.monotonic() + deadline
    with changed:
        while True:
            failed = [process for process in processes if process.returncode not in (None, 0)]
            if failed:
                failed[0]._reader.join(1.0)
                failed[0]._fail(f"ended with status {failed[0].returncode}")
            running = [process for process in processes if process.returncode is None]
            if not running:
                return
            left = end - time.monotonic()
            if left <= 0:
                running[0]._fail(f"still runs after {deadline:g} s")
            changed.wait(left)


class Worker:
    def __init__(self, lab, site, index):
        self.site = site
        self.index = index
        self.namespace = f"{lab.prefix}-w{site.id}.{index}"
        self.address = f"10.{site.id}.0.{10 + index}"
        self.interface = "veth0"


class Site:
    def __init__(self, lab, number, workers):
        self.id = number
        self.name = "abcdefghijklmnopqrstuvwxyz"[number - 1]
        self.namespace = f"{lab.prefix}-gw{number}"
        self.bridge_namespace = f"{lab.prefix}-br{number}"
        self.lan_address = f"10.{number}.0.1"
        self.wan_address = f"198.51.100.{number}"
        self.gateway = f"{self.lan_address}:{CONTROL_PORT}"
        self.workers = [Worker(lab, self, index) for index in range(workers)]


class Lab:
    """Context manager: `with Lab("name", sites=2, workers=2) as lab:`.

    wan_rate   tbf rate ("1gbit") of the WAN towards each site: AF_XDP transmission bypasses the sender's own qdisc.
    wan_loss   probability that a packet entering the WAN is lost (nftables; the kernel here has no netem, so no delay).
    ipv6       leave IPv6 on; otherwise its autoconfiguration would disturb packet counts.
    xdp_pass   XDP_PASS on the far end of every gateway interface: frames that an XDP program sends out of a veth
               (XDP_TX, redirect) are lost without it. AF_XDP transmission does not need it.
    """

    _count = 0

    def __init__(self, name, sites=2, workers=2, *, lan_mtu=3498, wan_mtu=3498, wan_rate=None, wan_loss=0.0,
                 ipv6=False, xdp_pass=False, out=None):
        Lab._count += 1
        self.name = name
        self.prefix = f"gg{os.getpid()}" + (f"x{Lab._count}" if Lab._count > 1 else "")
        self.wan_namespace = f"{self.prefix}-wan"
        self.sites = [Site(self, number, workers) for number in range(1, sites + 1)]
        self.workers = [worker for site in self.sites for worker in site.workers]
        self.lan_mtu = lan_mtu
        self.wan_mtu = wan_mtu
        self.out = out or os.path.join(ROOT, "tests", "out", re.sub(r"[^\w.-]+", "_", name))
        self.failed = False
        self.gateways = {}
        self._options = {"wan_rate": wan_rate, "wan_loss": wan_loss, "ipv6": ipv6, "xdp_pass": xdp_pass}
        self._processes = []
        self._links = []
        self._handlers = {}
        self._open = False

    # -- life ---------------------------------------------------------------------------------------------------

    def __enter__(self):
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        self._open = True
        atexit.register(self.close)
        self._catch_signals()
        try:
            claim(self.prefix)
            self._build()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        # Who interrupts it does not want its logs.
        if kind is not None and not issubclass(kind, KeyboardInterrupt):
            self.failed = True
        self.close()

    def close(self):
        """Ends every program and removes every namespace; can be called again."""
        if not self._open:
            return
        main = threading.current_thread() is threading.main_thread()
        # A second Ctrl-C must not leave half a lab behind.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS} if main else {}
        try:
            for process in self._processes:
                process.signal(signal.SIGTERM)
            end = time.monotonic() + 5.0
            for process in self._processes:
                try:
                    process.wait(max(0.0, end - time.monotonic()))
                except LabError:
                    pass
                process.kill()
            for link in self._links:
                os.close(link)
            self._links.clear()
            release(self.prefix)
            self._open = False
            atexit.unregister(self.close)
            if not self.failed:
                shutil.rmtree(self.out, ignore_errors=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, self._handlers.get(number, handler))
            self._handlers = {}

    def _catch_signals(self):
        if threading.current_thread() is not threading.main_thread():
            return

        def terminate(number, frame):
            raise Terminated(signal.Signals(number).name)

        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, terminate)

    # -- topology -----------------------------------------------------------------------------------------------

    def _build(self):
        wan = self.wan_namespace
        names = [wan]
        for site in self.sites:
            names += [site.namespace, site.bridge_namespace] + [worker.namespace for worker in site.workers]
        batch(f"netns add {name}" for name in names)
        for name in names:
            inside(name, self._set_sysctls)
        bridges = [(wan, self.wan_mtu)] + [(site.bridge_namespace, self.lan_mtu) for site in self.sites]
        for name, mtu in bridges:
            batch([f"link add name br0 mtu {mtu} type bridge stp_state 0 mcast_snooping 0", "link set br0 up"], name)
        for site in self.sites:
            self._wire(site.namespace, "lan", site.lan_address, site.bridge_namespace, "gw", self.lan_mtu)
            self._wire(site.namespace, "wan", site.wan_address, wan, f"s{site.id}", self.wan_mtu)
            for worker in site.workers:
                self._wire(worker.namespace, worker.interface, worker.address, site.bridge_namespace,
                           f"w{worker.index}", self.lan_mtu)
                # UDP_GRO needs a threaded NAPI (a veth has one only with GRO on), and veth_xmit (kernel 6.18) bypasses
                # the NAPI of its peer while it has TSO itself.
                command(["ip", "netns", "exec", site.bridge_namespace, "ethtool", "-K", f"w{worker.index}", "tso", "off"])
                path = f"/sys/class/net/{worker.interface}/threaded"
                command(["ip", "netns", "exec", worker.namespace, "sh", "-c",
                          f"ethtool -K {worker.interface} gro on && echo 1 > {path}"])
            self._shape(site)
        for name in names:
            batch(["link set lo up"], name)

    def _wire(self, namespace, interface, address, bridge_namespace, port, mtu):
        batch([f"link add name {interface} mtu {mtu} netns {namespace} type veth "
                f"peer name {port} mtu {mtu} netns {bridge_namespace}"])
        batch([f"link set {port} master br0", f"link set {port} up"], bridge_namespace)
        batch([f"address add {address}/24 dev {interface}", f"link set {interface} up"], namespace)
        # Otherwise the UDP checksum is left for hardware that is not there, and XDP sees it unfinished.
        command(["ip", "netns", "exec", namespace, "ethtool", "-K", interface, "tx", "off"])
        if self._options["xdp_pass"] and interface in ("lan", "wan"):
            self._links.append(inside(bridge_namespace, lambda: attach_xdp_pass(port)))

    def _shape(self, site):
        rate, loss = self._options["wan_rate"], self._options["wan_loss"]
        if rate:
            command(["tc", "-n", self.wan_namespace, "qdisc", "add", "dev", f"s{site.id}", "root", "tbf", "rate", rate,
                      "burst", "256kb", "latency", "20ms"])
        if loss:
            rule = (f"table netdev loss_s{site.id} {{\n chain ingress {{\n"
                    f"  type filter hook ingress device s{site.id} priority 0;\n"
                    f"  meta protocol {{ ip, ip6 }} numgen random mod 1000000 < {round(loss * 1e6)} counter drop\n }}\n}}\n")
            command(["ip", "netns", "exec", self.wan_namespace, "nft", "-f", "-"], stdin=rule)

    def _set_sysctls(self):
        # br_netfilter, where it is built in, drops frames with an IP checksum of 0 on bridges.
        for table in ("iptables", "ip6tables", "arptables"):
            write_if_there(f"/proc/sys/net/bridge/bridge-nf-call-{table}", "0")
        if not self._options["ipv6"]:
            for scope in ("all", "default"):
                write_if_there(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6", "1")

    # -- programs -----------------------------------------------------------------------------------------------

    def run(self, namespace, argv, *, name, env=None, cwd=None, on_line=None):
        """Starts argv in a namespace; it ends with the lab at the latest. name is also the log file's."""
        path = os.path.join(self.out, f"{name}.log")
        number = 1
        while os.path.exists(path):
            number += 1
            path = os.path.join(self.out, f"{name}-{number}.log")
        process = Process(name, ["ip", "netns", "exec", namespace, *argv], path, env, cwd, on_line)
        self._processes.append(process)
        return process

    def capture(self, site, interface, *filters):
        """tcpdump of a gateway's interface ("lan", "wan") into out/<site>-<interface>.pcap, from the far end of its
        cable: what goes to an AF_XDP socket is not seen on the interface itself."""
        namespace, port = {"lan": (site.bridge_namespace, "gw"), "wan": (self.wan_namespace, f"s{site.id}")}[interface]
        path = os.path.join(self.out, f"{site.name}-{interface}.pcap")
        process = self.run(namespace, ["tcpdump", "-i", port, "-n", "-U", "--immediate-mode", "-Z", "root", "-w", path, *filters],
                           name=f"tcpdump-{site.name}-{interface}")
        process.wait_for_line("listening on", 10)
        process.pcap = path
        return process

    def http(self, namespace, url, body=None, *, method=None, headers=None, timeout=10.0):
        """(status, document) of an HTTP request made inside a namespace; a dict or list body is sent as JSON, and a
        JSON answer is decoded. url: "10.1.0.1:9470/v1/status"."""
        host, slash, path = url.removeprefix("http://").partition("/")

        def exchange():
            connection = http.client.HTTPConnection(host, timeout=timeout)
            try:
                content = json.dumps(body) if isinstance(body, (dict, list)) else body
                kind = {"Content-Type": "application/json"} if content is not None else {}
                connection.request(method or ("GET" if content is None else "POST"), slash + path, content,
                                   {**kind, **(headers or {})})
                answer = connection.getresponse()
                text = answer.read().decode()
                is_json = "json" in (answer.getheader("Content-Type") or "")
                return answer.status, json.loads(text) if is_json else text
            finally:
                connection.close()

        return inside(namespace, exchange)

    def get(self, site, path):
        """The document at a gateway's path; LabError unless the status is 200."""
        status, document = self.http(site.namespace, site.gateway + path)
        if status != 200:
            raise LabError(f"GET {path} of site {site.name}: status {status}: {document}")
        return document

    # -- gateways -----------------------------------------------------------------------------------------------

    def write_site_file(self, site, *, peers=None, lanes=4, chunk="1024 B", idle="sleep", modality="udp4",
                        peer_rate="2 Gbit/s", peer_rtt="1 ms", tenants=((TENANT, TOKEN, "2 GiB"),), extra=""):
        """Writes out/<site>.toml (DESIGN section 11) and returns its path. peers: all other sites by default; with
        none, the site has a lan port only."""
        peers = [other for other in self.sites if other is not site] if peers is None else peers
        text = f'[site]\nname = "{site.name}"\nid = {site.id}\n'
        ports = [("lan", site.lan_address, self.lan_mtu)]
        if peers:
            ports.append(("wan", site.wan_address, self.wan_mtu))
        for port, address, mtu in ports:
            text += f'\n[[port]]\nname = "{port}"\ndevice = "{port}"\nmtu = {mtu}\naddress = ["{address}/24"]\n'
        for peer in peers:
            address = self.mac(peer, "wan") if modality == "ethernet" else peer.wan_address
            text += (f'\n[[peer]]\nsite = "{peer.name}"\nid = {peer.id}\nport = "wan"\nmodality = "{modality}"\n'
                     f'address = "{address}"\nrate = "{peer_rate}"\nrtt = "{peer_rtt}"\n'
                     f'control = "{peer.wan_address}:{CONTROL_PORT}"\ntrusted = true\n')
        text += f'\n[dataplane]\nlanes = {lanes}\nidle = "{idle}"\nchunk = "{chunk}"\n'
        text += f'\n[control]\nlisten = "0.0.0.0:{CONTROL_PORT}"\n'
        for tenant, token, memory in tenants:
            text += f'\n[[tenant]]\nname = "{tenant}"\ntoken = "{token}"\nmemory = "{memory}"\n'
        path = os.path.join(self.out, f"{site.name}.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + extra)
        return path

    def mac(self, site, interface):
        shown = command(["ip", "-n", site.namespace, "-j", "link", "show", "dev", interface])
        return json.loads(shown)[0]["address"]

    def start_gateway(self, site, config=None, *, deadline=30.0, argv=()):
        """Starts gradgate in the site's gateway namespace and waits until it says that it is ready."""
        program = os.path.join(BUILD, "app", "gateway", "gradgate")
        if not os.access(program, os.X_OK):
            raise LabError(f"{program} is missing: run ninja -C {BUILD}")
        config = config or self.write_site_file(site)
        process = self.run(site.namespace, [program, "--config", config, *argv], name=f"gateway-{site.name}")
        self.gateways[site.id] = process
        process.wait_for_line(r"\bready\b", deadline)
        return process

    def stop_gateway(self, site, deadline=15.0):
        """SIGTERM; LabError unless it drains and exits with status 0 in time."""
        process = self.gateways.pop(site.id)
        status = process.stop(deadline)
        if status != 0:
            raise LabError(f"{process.name} ended with status {status} on SIGTERM; log: {process.log_path}")

    def kill_gateway(self, site):
        """SIGKILL, as a crash would."""
        self.gateways.pop(site.id).kill()
