#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what gradgate is built from, run with and tested by: Debian 12's own packages only, listed here once.
#
# usage: sudo deploy/install-deps.sh [--list]
set -euo pipefail

build="g++ meson ninja-build pkgconf clang-14 llvm-14 clang-format-14 bpftool
  dpdk-dev libdpdk-dev libbpf-dev libxdp-dev libboost-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libhwy-dev
  libcli11-dev nlohmann-json3-dev libisal-dev"
run="iproute2 ethtool python3 python3-numpy python3-torch libopenblas0-serial"
test="libgtest-dev libgmock-dev libclang-rt-14-dev libasan8 libubsan1 python3-pytest python3-scapy
  tcpdump tshark nftables prometheus iputils-ping curl jq"
packages="$build $run $test"

if [ "${1:-}" = "--list" ]; then
  printf '%s\n' $packages
  exit 0
fi
if [ $# -gt 0 ]; then
  echo "usage: sudo deploy/install-deps.sh [--list]" >&2
  exit 2
fi

missing=()
for package in $packages; do
  # dpkg-query prints nothing for a package that was never known here.
  case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" in
    installed) ;;
    *) missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "install-deps: these packages are missing and installing them needs root: ${missing[*]}" >&2
  echo "install-deps: run: sudo deploy/install-deps.sh" >&2
  exit 1
fi
echo "install-deps: installing ${#missing[@]} Debian packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
