# SPDX-License-Identifier: Apache-2.0
"""The lab's dealings with the machine: commands, namespaces, who owns them, socket limits, one BPF program."""
import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading

SOCKET_BUFFER_BYTES = 8 << 20

STATE_DIR = "/run/gradgate-lab"
SOCKET_LIMITS = ("/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max")
_NAME = re.compile(r"^(gg(\d+)(?:x\d+)?)-")


class LabError(Exception):
    """The lab could not do what was asked; the message says what and where."""


def inside(namespace, function):
    """Calls function() in a network namespace and returns its result; sockets it opens stay there.

    setns changes one thread only, so each call has its own. /proc/sys/net follows, /sys does not: use run() for it.
    """
    outcome = {}

    def body():
        try:
            _enter(namespace)
            outcome["value"] = function()
        except BaseException as error:  # handed to the caller's thread
            outcome["error"] = error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def namespaces():
    """Names of all lab namespaces on this machine, of any owner."""
    try:
        return sorted(name for name in os.listdir("/run/netns") if _NAME.match(name))
    except FileNotFoundError:
        return []


def command(argv, stdin=None):
    done = subprocess.run(argv, input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True, **({} if stdin is not None else {"stdin": subprocess.DEVNULL}))
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip() or f'status {done.returncode}'}")
    return done.stdout


def batch(lines, namespace=None):
    command(["ip", *(["-n", namespace] if namespace else []), "-batch", "-"], stdin="\n".join(lines) + "\n")


def write_if_there(path, value):
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    except FileNotFoundError:
        pass


def _enter(namespace):
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000) != 0:  # CLONE_NEWNET
            raise LabError(f"setns {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


class _Locked:
    """One lab at a time changes what labs share."""

    def __enter__(self):
        os.makedirs(STATE_DIR, exist_ok=True)
        self._file = open(os.path.join(STATE_DIR, "lock"), "w", encoding="ascii")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self._file.close()


def _start_time(pid):
    """In clock ticks since boot, so that a pid used again is not taken for the owner; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _owner_path(prefix):
    return os.path.join(STATE_DIR, f"{prefix}.owner")


def _owner_lives(prefix, pid):
    now = _start_time(pid)
    try:
        with open(_owner_path(prefix), encoding="ascii") as file:
            return now is not None and now == int(file.read())
    except (FileNotFoundError, ValueError):
        return now is not None


def claim(prefix):
    """Removes what dead labs left, then takes ownership of prefix and raises the socket buffers' limits."""
    with _Locked():
        owned = {name.removesuffix(".owner") for name in os.listdir(STATE_DIR) if name.endswith(".owner")}
        for other in owned | {_NAME.match(name).group(1) for name in namespaces()}:
            pid = int(re.match(r"gg(\d+)", other).group(1))
            if not _owner_lives(other, pid):
                _remove(other)
        with open(_owner_path(prefix), "w", encoding="ascii") as file:
            file.write(str(_start_time(os.getpid())))
        saved = os.path.join(STATE_DIR, "limits.json")
        if not os.path.exists(saved):
            limits = {path: open(path, encoding="ascii").read().strip() for path in SOCKET_LIMITS}
            with open(saved, "w", encoding="ascii") as file:
                json.dump(limits, file)
        for path in SOCKET_LIMITS:
            with open(path, encoding="ascii") as file:
                if int(file.read()) < SOCKET_BUFFER_BYTES:
                    write_if_there(path, str(SOCKET_BUFFER_BYTES))


def release(prefix):
    """Removes a lab's namespaces; the last one restores the limits."""
    with _Locked():
        _remove(prefix)
        saved = os.path.join(STATE_DIR, "limits.json")
        if os.path.exists(saved) and not any(name.endswith(".owner") for name in os.listdir(STATE_DIR)):
            with open(saved, encoding="ascii") as file:
                for path, value in json.load(file).items():
                    write_if_there(path, value)
            os.unlink(saved)


def _remove(prefix):
    failures = []
    for name in namespaces():
        if _NAME.match(name).group(1) != prefix:
            continue
        try:
            for pid in command(["ip", "netns", "pids", name]).split():
                try:
                    # The lab's own process may be inside(): that thread ends by itself.
                    if int(pid) != os.getpid():
                        os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            command(["ip", "netns", "del", name])
        except LabError as error:
            failures.append(str(error))
    if failures:
        print("lab: " + "\nlab: ".join(failures), file=sys.stderr)
    else:
        try:
            os.unlink(_owner_path(prefix))
        except FileNotFoundError:
            pass


def _bpf(operation, attributes):
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    handle = ctypes.CDLL(None, use_errno=True).syscall(number, operation, buffer, len(attributes))
    if handle < 0:
        raise LabError(f"bpf operation {operation}: {os.strerror(ctypes.get_errno())}")
    return handle


def attach_xdp_pass(interface):
    """A bpf_link of `return XDP_PASS` on interface: the kernel detaches it when this process ends."""
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0))  # r0 = 2; exit
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    program = _bpf(5, struct.pack("<IIQQ", 6, 2, ctypes.addressof(code), ctypes.addressof(licence)).ljust(128, b"\0"))
    try:
        index = socket.if_nametoindex(interface)
        return _bpf(28, struct.pack("<IIII", program, index, 37, 4).ljust(64, b"\0"))  # BPF_XDP, XDP_FLAGS_DRV_MODE
    finally:
        os.close(program)
