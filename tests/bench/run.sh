#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/bench/run.sh NAME: builds in release, prints the conditions and runs one benchmark (DESIGN section 12).
set -eu

names="reduce"
top=$(cd "$(dirname "$0")/../.." && pwd)
build="$top/build-bench"
name=${1:-}

case " $names " in
  *" ${name:-none given} "*) ;;
  *)
    echo "run.sh: no benchmark '$name'; there are: $names" >&2
    exit 2
    ;;
esac

if [ ! -f "$build/build.ninja" ]; then
  meson setup --buildtype=release "$build" "$top" >&2
fi
ninja -C "$build" "tests/bench/${name}_bench" >&2

echo "benchmark: $name"
echo "CPU:       $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) online"
echo "kernel:    $(uname -sr)"
echo "date:      $(date -u +%Y-%m-%dT%H:%M:%SZ)"
echo "commit:    $(git -C "$top" describe --always --dirty 2>/dev/null || echo 'none yet')"
echo "load:      $(cut -d ' ' -f 1-3 /proc/loadavg)"
echo "command:   $build/tests/bench/${name}_bench"
echo
exec "$build/tests/bench/${name}_bench"
