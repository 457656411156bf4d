# SPDX-License-Identifier: Apache-2.0
"""The body of tests/run.sh: one tier after the other, counted by test case.

style  clang-format-14 of every *.h *.cc *.c
unit, sim, bpf, fuzz  the meson suite of that name, in build/; unit: and pytest of tests/unit/python
net    pytest of tests/net, with the programs of build/
asan   suites unit and sim in build-asan/, with the address and undefined-behaviour sanitizers

A tier without tests counts 0; a build that fails counts as one failed case of each tier that needs it.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
BUILD_ASAN = os.path.join(ROOT, "build-asan")
LOGS = os.path.join(ROOT, "tests", "out", "run")
TIERS = ("style", "unit", "sim", "bpf", "net", "asan", "fuzz")
DEFAULT_TIERS = TIERS[:-1]
SANITIZED_SUITES = ("unit", "sim")
# Meson's limits are for an idle machine.
TIMEOUT_FACTOR = 10


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __add__(self, other):
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def say(text=""):
    print(text, flush=True)


def run_logged(argv, log, **options):
    """Exit status (None: timed out) and output of argv; the output is kept in log."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        status, output = None, expired.output or b""
    text = output.decode("utf-8", "replace")
    with open(log, "w", encoding="utf-8") as file:
        file.write(text)
    return status, text


_built = {}


def build(directory, *options, targets=("all",)):
    """Configures and builds once a run; True if it succeeded, otherwise the errors were printed."""
    if directory not in _built:
        begin = time.monotonic()
        name = os.path.basename(directory)
        say(f"building {name}/ …")
        log = os.path.join(LOGS, f"{name}.log")
        status, text = 0, ""
        if not os.path.exists(os.path.join(directory, "build.ninja")):
            status, text = run_logged(["meson", "setup", directory, ROOT, *options], log)
        if status == 0:
            status, text = run_logged(["ninja", "-C", directory, *targets], log)
        _built[directory] = status == 0
        say(f"building {name}/ {'done' if status == 0 else 'FAILED'} ({time.monotonic() - begin:.0f} s)")
        if status != 0:
            errors = [index for index, line in enumerate(text.splitlines()) if re.search(r"FAILED:|ERROR|error:", line)]
            lines = text.splitlines()[errors[0] if errors else -60:]
            say("\n".join(lines[:60]) + f"\nlog: {log}")
    return _built[directory]


def run_suite(suite, directory, log_prefix, environment=None):
    listed = subprocess.run(["meson", "introspect", "--tests", directory], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            text=True, check=True)
    total = Count()
    for test in json.loads(listed.stdout):
        if suite in (name.rpartition(":")[2] for name in test["suite"]):
            total += run_executable(test, directory, log_prefix, environment or {})
    return total


def run_executable(test, directory, log_prefix, environment):
    base = os.path.join(LOGS, f"{log_prefix}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', test['name'])}")
    log, report = base + ".log", base + ".xml"
    gtest = test["protocol"] == "gtest"
    argv = test["cmd"] + ([f"--gtest_output=xml:{report}"] if gtest else [])
    limit = test["timeout"] * TIMEOUT_FACTOR if test["timeout"] else None
    begin = time.monotonic()
    try:
        # Custom targets among the arguments are named from the build directory, as meson itself runs them.
        status, text = run_logged(argv, log, cwd=test["workdir"] or directory, env={**os.environ, **test["env"], **environment},
                                  timeout=limit)
    except OSError as error:
        status, text = -1, str(error)
    failures, skips = [], []
    if gtest and os.path.exists(report):
        count, failures, skips = read_report(report)
    elif gtest:  # it died: what had passed by then is in its output
        count = Count(passed=text.count("[       OK ]"))
    elif status == 77:
        count = Count(skipped=1)
        skips = [(test["name"], text.strip().splitlines()[-1] if text.strip() else "status 77")]
    else:
        count = Count(passed=1 if status == 0 else 0)
    if status != 0 and not (failures or skips):
        ending = f"still ran after {limit} s" if status is None else f"ended with status {status}"
        failures = [(test["name"], ending + "\n" + "\n".join(text.splitlines()[-60:]))]
        count += Count(failed=1)
    say(f"  {test['name']:32} {count}   ({time.monotonic() - begin:.1f} s)")
    for name, why in skips:
        say(f"    SKIPPED {name}: {why}")
    for name, what in failures:
        say(f"    FAILED {name}\n" + "\n".join("      " + line for line in what.splitlines()))
    if failures:
        say(f"    log: {log}")
    return count


def read_report(path):
    """Count, [(case, failure)] and [(case, reason of the skip)] of a gtest or pytest XML report."""
    count, failures, skips = Count(), [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        wrong = case.findall("failure") + case.findall("error")
        skipped = case.find("skipped")
        if wrong:
            count.failed += 1
            failures.append((name, "\n".join(one.text or one.get("message") or "" for one in wrong)))
        elif skipped is not None or case.get("result") == "skipped":
            count.skipped += 1
            reason = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
            skips.append((name, " ".join(reason.split()) or "no reason given"))
        elif case.get("status") != "notrun":
            count.passed += 1
    return count, failures, skips


def tier_style():
    files = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith((".", "build")) and name != "out"]
        files += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names if name.endswith((".h", ".cc", ".c"))]
    if not files:
        return Count()
    log = os.path.join(LOGS, "style.log")
    status, text = run_logged(["clang-format-14", "--dry-run", "-Werror", *sorted(files)], log, cwd=ROOT)
    if status == 0:
        say(f"  clang-format: {len(files)} files")
        return Count(passed=1)
    say("    FAILED clang-format: " + " ".join(sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: error", text, re.M)))))
    say(f"    remedy: clang-format-14 -i FILE; log: {log}")
    return Count(failed=1)


def run_pytest(folder):
    """The pytest files of one folder below tests/."""
    report = os.path.join(LOGS, folder.replace("/", "-") + ".xml")
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", f"--junit-xml={report}",
                           os.path.join(ROOT, "tests", folder)], stdin=subprocess.DEVNULL, env={**os.environ, "GRADGATE_BUILD": BUILD}, cwd=ROOT)
    if done.returncode == 5:  # nothing collected
        return Count()
    count = read_report(report)[0] if os.path.exists(report) else Count()
    if done.returncode != 0 and count.failed == 0:
        say(f"    FAILED pytest ended with status {done.returncode}")
        count.failed += 1
    return count


def tier_asan():
    # Fewer seeds than the sim tier's: here it looks for errors of memory, which need no rare coincidence.
    environment = {"GRADGATE_SIM_SEEDS": "60", "ASAN_OPTIONS": "detect_stack_use_after_return=1",
                   "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    total = Count()
    for suite in SANITIZED_SUITES:
        total += run_suite(suite, BUILD_ASAN, f"asan-{suite}", environment)
    return total


def run_tier(tier):
    if tier == "style":
        return tier_style()
    if tier == "asan":
        if not build(BUILD_ASAN, "-Doptimization=1", "-Ddebug=false", "-Dcpp_args=-g1", "-Db_sanitize=address,undefined",
                     "-Db_lundef=false", targets=["meson-test-prereq"]):
            return Count(failed=1)
        return tier_asan()
    if not build(BUILD, "--buildtype=release"):
        return Count(failed=1)
    if tier == "net":
        return run_pytest("net")
    count = run_suite(tier, BUILD, tier)
    return count + run_pytest("unit/python") if tier == "unit" else count


def main(tiers):
    if any(tier not in TIERS for tier in tiers):
        print(f"usage: sudo tests/run.sh [TIER ...]    tiers: {' '.join(TIERS)}", file=sys.stderr)
        return 2
    shutil.rmtree(LOGS, ignore_errors=True)
    os.makedirs(LOGS)
    total = Count()
    for tier in tiers or DEFAULT_TIERS:
        say(f"== {tier}")
        count = run_tier(tier)
        say(f"== {tier}: {count}\n")
        total += count
    say(str(total))
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
