#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small GPT across two sites of two workers, on this machine, through two gradgate gateways.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  cat <<TEXT
usage: sudo deploy/quickstart.sh [--steps N]

Installs what is missing (Debian packages), builds gradgate in build/, makes two sites of two workers in network
namespaces, starts a gateway at each, trains a small GPT through them for N steps (default 30), and shows what the
gateways did. Everything but the packages and build/ is removed at the end, also after Ctrl-C.
TEXT
}

steps=30
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --steps) steps=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    *) echo "quickstart: unknown argument '$1'; see deploy/quickstart.sh --help" >&2; exit 2 ;;
  esac
done
if ! [[ $steps =~ ^[1-9][0-9]{0,5}$ ]]; then
  echo "quickstart: --steps takes a number from 1 to 999999, not '$steps'" >&2
  exit 2
fi
if [ "$(id -u)" != 0 ]; then
  echo "quickstart: network namespaces and XDP need root; run: sudo deploy/quickstart.sh" >&2
  exit 1
fi

"$root/deploy/install-deps.sh"
build="$root/build"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "quickstart: building (a few minutes the first time)"
if ! { [ -e "$build/build.ninja" ] || meson setup "$build" "$root" --buildtype=release; } >"$log" 2>&1 ||
  ! ninja -C "$build" >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "quickstart: the build failed; its output is above" >&2
  exit 1
fi
rm -f "$log"
GRADGATE_BUILD=$build exec /usr/bin/python3 "$root/deploy/quickstart/quickstart.py" --steps "$steps"
