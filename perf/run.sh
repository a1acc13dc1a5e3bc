#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The short benchmarks, each figure beside its bar and its reference from the same run; JSON with the raw samples in OUT_DIR.
# usage: perf/run.sh BUILD_DIR [OUT_DIR]     exit code: 0 all ran (bars met or not), 1 something failed, 2 wrong usage
set -uo pipefail
usage() {
    printf 'perf/run.sh: %s; usage: perf/run.sh BUILD_DIR [OUT_DIR]\n' "$1" >&2
    exit 2
}
[ $# -ge 1 ] && [ $# -le 2 ] || usage "one or two folders are needed"
[ -x "$1/perf/netperf/netperf" ] || usage "$1 holds no build with the benchmarks (./dev build makes one)"
build=$(cd -- "$1" && pwd)
out=${2:-$build/bench}
mkdir -p "$out" || usage "$out cannot be made"
out=$(cd -- "$out" && pwd)
cd -- "$(dirname -- "$0")/.." || exit 1
failed=()
# The library of this build. LD_PRELOAD is cut at blanks, which its path may have.
link=$(mktemp -d /tmp/deft-bench-XXXXXX) || exit 1
trap 'rm -rf "$link"' EXIT
library=$link/libnccl-net-deft.so
ln -s "$build/packaging/libnccl-net-deft.so" "$library" || exit 1

# part NAME TITLE COMMAND...: where it does not end well it is a failure.
# The parts end what they have begun and exit, which the shell would take for a failed part.
trap 'exit 130' INT
part() {
    local name=$1
    printf '\n== %s\n' "$2"
    shift 2
    "$@" || failed+=("$name")
}
# barred COMMAND...: exit code 1 is how perf/links and perf/e2e say that a bar is missed (perf/common/exits.py), which is no failure.
barred() {
    local status=0
    "$@" || status=$?
    [ "$status" -le 1 ]
}

hook_cost() {
    "$build/perf/preload/hook_cost" --library "$library" >"$out/hook_cost.json" || return 2
    python3 - "$out/hook_cost.json" <<'PYTHON'
import json, statistics, sys
with open(sys.argv[1], encoding="utf-8") as file:
    result = json.load(file)
bare = statistics.median(one["median"] for one in result["no_preload"])
print(f"without preload {bare:.0f} ns a call")
SETUPS = {"device_observe": "observe, two ranks on the software device", "device_exact": "exact, the same, with a director"}
for setup, added in result["added"].items():
    bar = 5000 if setup == "device_exact" else 1000
    print(f"mode {SETUPS.get(setup, setup):8} adds {added:.0f} ns; the bar is {bar} ns" + ("" if added <= bar else ": MISSED"))
for call, cost in result.get("device_calls", {}).items():
    print(f"{call} of the software device takes {cost:.0f} ns, which is none of deft's")
PYTHON
}

# Not among the default targets; planner_bench needs Google Benchmark.
ninja -C "$build" perf/headlines/headlines >/dev/null || failed+=(headlines)
ninja -C "$build" perf/planner/planner_bench >/dev/null 2>&1 ||
    printf '\nplanner_bench: not built; it needs Google Benchmark (libbenchmark-dev)\n'
[ ! -x "$build/perf/planner/planner_bench" ] ||
    part planner "how long planning takes" "$build/perf/planner/planner_bench" --benchmark_min_time=0.1 \
        --benchmark_out="$out/planner.json" --benchmark_out_format=json
part headlines "the papers' headline figures beside the simulator's" "$build/perf/headlines/headlines"
part startup "what preloading adds to /bin/true (bar: 0.2 ms)" python3 perf/preload/startup --library "$library" --json "$out/startup.json"
part hook "what a hook adds to a call (bars: 1 us, 5 us in mode exact with a director)" hook_cost
part links "the plugin over one and over several links, beside raw TCP and the Socket transport" \
    barred python3 perf/links --build "$build" --case unequal,one-link --pairs 2 --seconds 0.5 --json "$out/links.json"
part e2e "a replayed job over two links against the lower bound of each mode (bar: 1.05)" \
    barred python3 perf/e2e/run.py --build "$build" --jobs replay --cases 1gbit+500mbit --coverage 0.9 --rounds 1 --json "$out/e2e.json"
printf '\nfigures in %s\n' "$out"
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[*]}" >&2; exit 1; }
