#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The short benchmarks, each beside its reference from the same run. usage: perf/run.sh BUILD_DIR [OUT_DIR]
set -euo pipefail
build=${1:?usage: perf/run.sh BUILD_DIR [OUT_DIR]}
out=${2:-$build/bench}
mkdir -p "$out"
cd -- "$(dirname -- "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "what preloading adds to /bin/true (bar: 0.2 ms)"
python3 perf/preload/startup --json "$out/startup.json" || true
say "what a hook adds to a call"
"$build/perf/preload/hook_cost" || true
for plugin in socket "$build/packaging/libnccl-net-deft.so"; do
    say "one link, loopback: $plugin"
    DEFT_INTERFACES=lo NCCL_SOCKET_IFNAME=lo "$build/perf/netperf/netperf" --plugin "$plugin" --sizes 64K,512K,1M \
        --time 1 --json "$out/netperf-$(basename "$plugin").json"
done
say "figures in $out"
