# SPDX-License-Identifier: Apache-2.0
"""libgradgate.so through ctypes."""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

SUCCESS, TIMEOUT = 0, 4
BYTES, FLOAT32, FLOAT16, BFLOAT16, INT32 = range(5)
SUM, AVERAGE = 1, 2
NO_LIMIT_MS = 0xFFFFFFFF

_NAME = "libgradgate.so.0"
_CODES = {
    1: "argument",
    2: "unreachable",
    3: "refused",
    4: "timeout",
    5: "group_failed",
    6: "aborted",
    7: "system",
}


class Error(RuntimeError):
    """A call failed; the text says what is wrong, where, and what would be right.

    Attributes:
        code: "argument", "unreachable", "refused", "timeout", "group_failed", "aborted" or "system": the GG_ERROR_*
            codes of gradgate.h.
    """

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("gateway", c_char_p),
        ("tenant", c_char_p),
        ("token", c_char_p),
        ("job", c_char_p),
        ("group", c_char_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("join_timeout_ms", c_uint32),
        ("address", c_char_p),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            "calls",
            "chunks",
            "bytes_sent",
            "bytes_received",
            "packets_sent",
            "packets_received",
            "packets_lost",
            "frames_resent",
            "packets_dropped",
            "gateway_restarts",
        )
    ]


_PROTOTYPES = {
    "gg_version": (c_char_p, []),
    "gg_last_error": (c_char_p, [c_void_p]),
    "gg_comm_init": (c_int, [POINTER(c_void_p), POINTER(Config)]),
    "gg_comm_finalize": (c_int, [c_void_p, c_uint32]),
    "gg_comm_abort": (c_int, [c_void_p]),
    "gg_comm_destroy": (c_int, [c_void_p]),
    "gg_comm_stats": (c_int, [c_void_p, POINTER(Stats)]),
    "gg_all_reduce": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p)]),
    "gg_reduce_scatter": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p)]),
    "gg_all_gather": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p)]),
    "gg_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int32, POINTER(c_void_p)]),
    "gg_reduce": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int32, POINTER(c_void_p)]),
    "gg_barrier": (c_int, [c_void_p, POINTER(c_void_p)]),
    "gg_wait": (c_int, [c_void_p, c_uint32]),
    "gg_test": (c_int, [c_void_p, POINTER(c_int)]),
    "gg_request_free": (None, [c_void_p]),
}


def _candidates():
    """Where the library may be: $GRADGATE_LIBRARY alone; else beside the package, the system's, a build tree."""
    named = os.environ.get("GRADGATE_LIBRARY")
    if named:
        return [named]
    package = Path(__file__).resolve().parent
    paths = [package / _NAME]
    if len(package.parents) > 3:  # lib/client/python/gradgate of a source tree
        paths.append(package.parents[3] / "build" / "lib" / "client" / _NAME)
    existing = [str(path) for path in paths if path.exists()]
    beside = [path for path in existing if Path(path).parent == package]
    return beside + [_NAME] + [path for path in existing if path not in beside]


def _load():
    failures = []
    for candidate in _candidates():
        try:
            # CDLL releases the GIL during every call.
            library = ctypes.CDLL(candidate)
            break
        except OSError as error:
            failures.append(str(error))
    else:
        raise ImportError(
            "gradgate: %s was not found (%s); build it with `meson setup build && ninja -C build`, or set "
            "GRADGATE_LIBRARY to its path" % (_NAME, "; ".join(failures))
        )
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


library = _load()


def last_error(comm=None):
    return library.gg_last_error(comm).decode("utf-8", "replace")


def check(result):
    """Raises Error unless `result` is GG_SUCCESS. To be called in the thread that made the call."""
    if result != SUCCESS:
        raise Error(last_error(), _CODES.get(result, "unknown"))


def version():
    """Version of the C library, such as "0.1.0"."""
    return library.gg_version().decode()


__all__ = ["Config", "Error", "Stats", "byref", "c_int", "c_void_p", "check", "last_error", "library", "version"]
