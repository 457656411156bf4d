#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gradgate and runs its tests; the last line is "N passed, N failed" (and ", N skipped").
#
# usage: sudo tests/run.sh [TIER ...]    tiers: style unit sim bpf net asan fuzz; all but fuzz by default
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/deploy/install-deps.sh"
exec /usr/bin/python3 "$root/tests/run.py" "$@"
