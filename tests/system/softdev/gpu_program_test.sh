#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# perf/gpu/allreduce.cpp on the software device: over NCCL's own transport, then preloaded and through deft's plugin.
# usage: gpu_program_test.sh PROGRAM LIBRARY
set -euo pipefail
program=$1 library=$2
# LD_PRELOAD is split at blanks: it gets a link whose path has none.
case ${TMPDIR:-/tmp} in *" "*) export TMPDIR=/tmp ;; esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
options=(--ranks 2 --iterations 3 --sizes 4,4096,1048576,4194304)

fails() { printf 'gpu-program: %s\n' "$1" >&2; cat "$folder"/*.[0-9j]* >&2; exit 1; }
good() {
    python3 - "$1" <<'PYTHON' || fails "$1 is not a good result"
import json, sys
result = json.load(open(sys.argv[1]))
sizes = result["sizes"]
assert len(sizes) == 4, sizes
assert all(size["wrong"] == 0 for size in sizes), sizes
PYTHON
}

NCCL_NET_PLUGIN=none NCCL_DEBUG_FILE="$folder/socket.%p" "$program" "${options[@]}" >"$folder/socket.json" ||
    fails "over Socket it failed"
good "$folder/socket.json"
grep -qh 'Using network Socket' "$folder"/socket.* || fails "Socket was not used"

ln -s "$(readlink -f "$library")" "$folder/libnccl-net-deft.so"
LD_PRELOAD=$folder/libnccl-net-deft.so NCCL_NET_PLUGIN=$library NCCL_DEBUG_FILE="$folder/deft.%p" DEFT_INTERFACES=lo DEFT_MODE=observe \
    DEFT_OUT="$folder/observe-%r-%p.json" "$program" "${options[@]}" >"$folder/deft.json" || fails "through deft it failed"
good "$folder/deft.json"
grep -qhi 'Using network deft' "$folder"/deft.* || fails "the plugin was not used"
[ "$(grep -l '"in_path": *true' "$folder"/observe-*.json | wc -l)" -eq 2 ] || fails "the hooks were not in the path of both ranks"
