#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Loads the library into the real NCCL on a machine with a GPU: two ranks on one GPU (a host id each) all-reduce over
# NCCL's own socket transport and then through deft's plugin, preloaded, in mode observe; then train with PyTorch DDP in
# every mode over two loopback links. Writes perf/results/gpu-<gpu>.json. Needs: an NVIDIA driver, g++, Meson and Ninja,
# cuda.h and nccl.h (toolkit or wheels); for DDP a Python (PYTHON, default python3) with a CUDA PyTorch and scikit-learn.
# Exit codes: 0 all good; 1 something was wrong; 3 a part is missing; 77 no GPU.
# usage: perf/gpu/run.sh [BUILD_DIR]
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."
build=${1:-build-gpu}
say() { printf 'gpu: %s\n' "$*" >&2; }

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n1 || true)
[ -n "$gpu" ] || { say "no NVIDIA GPU here (nvidia-smi finds none); nothing was measured"; exit 77; }

# NCCL: the toolkit's, the system's, or the wheel that PyTorch brings.
nccl_include='' nccl_lib=''
for folder in /usr/local/cuda /usr $(python3 -c '
import importlib.util as u, os
s = u.find_spec("nvidia")
print(*(os.path.join(p, "nccl") for p in (s.submodule_search_locations if s else [])))' 2>/dev/null || true); do
    for library in "$folder"/lib/libnccl.so.2 "$folder"/lib64/libnccl.so.2 "$folder"/lib/*-linux-gnu/libnccl.so.2; do
        if [ -z "$nccl_lib" ] && [ -e "$library" ] && [ -e "$folder/include/nccl.h" ]; then
            nccl_lib=$library nccl_include=$folder/include
        fi
    done
done
[ -n "$nccl_lib" ] || { say "no NCCL found (nccl.h, libnccl.so.2); install libnccl-dev or nvidia-nccl-cu13"; exit 3; }
cuda_include=/usr/local/cuda/include
[ -e "$cuda_include/cuda.h" ] || { say "no CUDA toolkit in /usr/local/cuda (cuda.h)"; exit 3; }

[ -e "$build/build.ninja" ] || meson setup "$build" -Dauto_features=disabled --buildtype=release >/dev/null
ninja -C "$build" >/dev/null
library=$(readlink -f "$build/packaging/libnccl-net-deft.so")
program=$build/gpu-allreduce
driver=$(ldconfig -p | awk '/libcuda.so.1/ {print $NF; exit}')
[ -n "$driver" ] || driver=$(ls /usr/local/nvidia/lib64/libcuda.so.1 2>/dev/null || true)
[ -n "$driver" ] || { say "the driver's libcuda.so.1 is not in ldconfig's list"; exit 3; }
g++ -std=c++20 -O2 -I"$nccl_include" -I"$cuda_include" perf/gpu/allreduce.cpp -o "$program" \
    "$nccl_lib" "$driver" -Wl,-rpath,"$(dirname "$nccl_lib")" -Wl,-rpath,"$(dirname "$driver")" \
    -Wl,--allow-shlib-undefined

logs=$build/gpu-logs
rm -rf "$logs" && mkdir -p "$logs"
common=(env NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2
        NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS="INIT,NET")
say "two ranks over NCCL's own socket transport"
timeout 180 "${common[@]}" NCCL_DEBUG_FILE="$logs/socket.%p" NCCL_NET_PLUGIN=none "$program" >"$logs/socket.json"
say "two ranks through deft"
timeout 180 "${common[@]}" NCCL_DEBUG_FILE="$logs/deft.%p" LD_PRELOAD="$library" NCCL_NET_PLUGIN="$library" \
    DEFT_INTERFACES=lo DEFT_MODE=observe DEFT_OUT="$logs/observe-%r-%p.json" "$program" >"$logs/deft.json"
grep -qhiE 'Using network deft' "$logs"/deft.* || { say "NCCL did not use the plugin; see $logs"; exit 1; }

say "PyTorch DDP, two ranks, in every mode"
ddp=0
"${PYTHON:-python3}" perf/gpu/ddp_modes.py --library "$library" --json "$logs/ddp.json" >&2 || ddp=$?
[ "$ddp" -ne 3 ] || printf '{"skipped": "no PyTorch with CUDA"}\n' >"$logs/ddp.json"
[ -e "$logs/ddp.json" ] || printf '{"failed": "see above"}\n' >"$logs/ddp.json"

mkdir -p perf/results
result=perf/results/gpu-$(tr -cs 'A-Za-z0-9' '-' <<<"$gpu" | sed 's/-*$//').json
python3 - "$logs" "$result" "$gpu" "$(git describe --always --dirty 2>/dev/null || echo unknown)" <<'PYTHON'
import glob, json, os, platform, subprocess, sys
logs, result, gpu, revision = sys.argv[1:]
read = lambda name: json.load(open(os.path.join(logs, name)))
driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                        capture_output=True, text=True).stdout.split("\n")[0]
observed = [json.load(open(p)) for p in sorted(glob.glob(os.path.join(logs, "observe-*.json")))]
out = {"what": "two ranks on one GPU, all-reduce over loopback", "revision": revision,
       "machine": {"gpu": gpu, "driver": driver, "cores": os.cpu_count(), "kernel": platform.release()},
       "socket": read("socket.json"), "deft": read("deft.json"), "ddp": read("ddp.json"),
       "observe": [{k: o.get(k) for k in ("library", "nccl", "rank", "ranks", "calls", "plugin", "links")}
                   for o in observed]}
json.dump(out, open(result, "w"), indent=1)
print(json.dumps(out, indent=1))
PYTHON
say "written: $result"
exit "$ddp"
