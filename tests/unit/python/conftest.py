# SPDX-License-Identifier: Apache-2.0
"""What the client's Python tests need: the built library and a gateway on loopback."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("GRADGATE_BUILD", ROOT / "build"))
LIBRARY = BUILD / "lib" / "client" / "libgradgate.so.0"
GATEWAY = BUILD / "tests" / "unit" / "client_fake_gateway"

sys.path.insert(0, str(ROOT / "lib" / "client" / "python"))
os.environ.setdefault("GRADGATE_LIBRARY", str(LIBRARY))


def pytest_collection_modifyitems(items):
    missing = [str(path) for path in (LIBRARY, GATEWAY) if not path.exists()]
    for item in items if missing else []:
        item.add_marker(pytest.mark.skip(reason="not built: %s (set GRADGATE_BUILD)" % ", ".join(missing)))


class Ranks:
    """Runs a function as every rank of a group, each in a thread of its own."""

    def __init__(self, address, size):
        self.address, self.size = address, size

    def communicator(self, rank, **options):
        import gradgate

        options = {"rank": rank, "size": self.size, "join_timeout": 20.0, **options}
        return gradgate.Communicator(self.address, "lab", "secret", "test", **options)

    def __call__(self, body):
        results, errors = [None] * self.size, []
        all_joined = threading.Barrier(self.size)

        def run(rank):
            try:
                with self.communicator(rank) as comm:
                    all_joined.wait(20)
                    results[rank] = body(comm, rank)
            except BaseException as error:  # whatever it is, the test shall see it
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        return results


@pytest.fixture
def gateway():
    """Starts a gateway for `size` ranks: gateway(size, loss=0.0) returns Ranks."""
    processes = []

    def start(size, loss=0.0):
        process = subprocess.Popen(
            [str(GATEWAY), str(size), str(loss)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return Ranks(process.stdout.readline().strip(), size)

    yield start
    for process in processes:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
