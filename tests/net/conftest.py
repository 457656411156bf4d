# SPDX-License-Identifier: Apache-2.0
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as lab_module  # noqa: E402


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if outcome.get_result().failed:
        item.session.failed_items = getattr(item.session, "failed_items", set()) | {item.nodeid}


@pytest.fixture(scope="session")
def namespaces_work():
    reason = lab_module.unavailable()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def make_lab(request, namespaces_work):
    """make_lab(sites=2, workers=2, …): a Lab named after the test; its logs stay in tests/out if the test fails."""
    made = []

    def make(**options):
        suffix = f"-{len(made) + 1}" if made else ""
        made.append(lab_module.Lab(request.node.name + suffix, **options))
        return made[-1].__enter__()

    yield make
    failed = request.node.nodeid in getattr(request.session, "failed_items", set())
    for one in reversed(made):
        one.failed = one.failed or failed
        if one.failed:
            print(f"logs: {one.out}")
        one.close()


@pytest.fixture
def lab(make_lab):
    """Two sites of two workers, no gateway started."""
    return make_lab()
