#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Loads the library into the real NCCL on a machine with a GPU: two ranks on one GPU (a host id each) all-reduce over
# NCCL's own socket transport and then through deft's plugin, preloaded, in mode observe; then train with PyTorch DDP in
# every mode over two loopback links. Writes perf/results/gpu-<gpu>.json. Needs: an NVIDIA driver, Meson and Ninja, Python
# (PYTHON, default python3); for the two ranks g++, cuda.h and nccl.h (toolkit or that Python's wheels); for DDP a CUDA
# PyTorch and scikit-learn. Of the two parts, what can be had is measured.
# Exit codes: 0 all good; 1 something was wrong; 2 wrong usage; 3 a part is missing; 77 no GPU.
# usage: perf/gpu/run.sh [BUILD_DIR [OPTION_OF_DDP_MODES...]]
set -euo pipefail
say() { printf 'gpu: %s\n' "$*" >&2; }
case ${1:-} in
    -h | --help) sed -n 's/^# \(usage: .*\)/\1/p' "$0"; exit 0 ;;
    -*) say "unknown option $1; usage: perf/gpu/run.sh [BUILD_DIR [OPTION_OF_DDP_MODES...]]"; exit 2 ;;
esac
cd -- "$(dirname -- "$0")/../.."
build=${1:-build-gpu}
ddp_options=("${@:2}")

# Without a driver nvidia-smi says so on its standard output.
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu=''
gpu=${gpu%%$'\n'*}
[ -n "$gpu" ] && [[ $gpu != "No devices"* ]] || { say "no NVIDIA GPU here (nvidia-smi finds none); nothing was measured"; exit 77; }

# Two ranks on one GPU are what is measured: where there are several, on the first that the user gives, or that there is.
[ -n "${CUDA_VISIBLE_DEVICES+set}" ] || export CUDA_DEVICE_ORDER=PCI_BUS_ID  # nvidia-smi's order
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
if own=$(nvidia-smi -i "$CUDA_VISIBLE_DEVICES" --query-gpu=name --format=csv,noheader 2>/dev/null) && [ -n "$own" ]; then
    gpu=${own%%$'\n'*}
fi

python=${PYTHON:-python3}
for tool in "$python" meson ninja; do
    command -v "$tool" >/dev/null || { say "no $tool found; nothing was measured"; exit 3; }
done

# Headers and NCCL: the toolkit's, the system's, or those of the wheels that PyTorch brings, each in a folder of its own.
mapfile -t wheels < <("$python" -c '
import glob, importlib.util as u, os
s = u.find_spec("nvidia")
for p in s.submodule_search_locations if s else []:
    for folder in sorted(glob.glob(os.path.join(glob.escape(p), "*", ""))): print(folder)' 2>/dev/null || true)
missing='' nccl_lib='' cuda='' includes=()
for folder in /usr/local/cuda /usr "${wheels[@]}"; do
    folder=${folder%/}
    for library in "$folder"/lib/libnccl.so.2 "$folder"/lib64/libnccl.so.2 "$folder"/lib/*-linux-gnu/libnccl.so.2; do
        if [ -z "$nccl_lib" ] && [ -e "$library" ] && [ -e "$folder/include/nccl.h" ]; then
            nccl_lib=$library includes+=("-I$folder/include")
        fi
    done
    if [ -z "$cuda" ] && [ -e "$folder/include/cuda.h" ]; then
        cuda=$folder includes+=("-I$folder/include")
    fi
done
for folder in "${wheels[@]}"; do  # what cuda.h and nccl.h include themselves may be in other wheels
    [ ! -d "${folder}include" ] || includes+=(-idirafter "${folder}include")
done
[ -n "$nccl_lib" ] || missing="nccl.h and libnccl.so.2 (libnccl-dev, or the wheel nvidia-nccl-cu13)"
[ -n "$cuda" ] || missing+="${missing:+, }cuda.h (the CUDA toolkit, or the wheel nvidia-cuda-runtime)"
# Where /sbin is not on PATH (Debian, not root), nor is ldconfig. awk reads to the end, so that the
# second one is not asked for a broken pipe.
driver=$({ ldconfig -p || /sbin/ldconfig -p || true; } 2>/dev/null |
    awk '/libcuda\.so\.1 / && !found {print $NF; found = 1}')
[ -n "$driver" ] || driver=$(ls /usr/local/nvidia/lib64/libcuda.so.1 2>/dev/null || true)
[ -n "$driver" ] || missing+="${missing:+, }the driver's libcuda.so.1 in ldconfig's list"

logs=$build/gpu-logs
rm -rf "$logs" && mkdir -p "$logs"
if ! { { [ -e "$build/build.ninja" ] || meson setup "$build" -Dauto_features=disabled --buildtype=release; } &&
       ninja -C "$build"; } >"$logs/build.txt" 2>&1; then
    tail -n 20 "$logs/build.txt" >&2
    say "the library could not be built (all of the output: $logs/build.txt); it needs Meson 1.0 and gcc 12 or clang 14:" \
        "remove $build, or name another folder, after what is missing is there; nothing was measured"
    exit 3
fi
library=$(readlink -f "$build/packaging/libnccl-net-deft.so")
# LD_PRELOAD is cut at blanks, which the library's path may have.
link=$(mktemp -d /tmp/deft-gpu-XXXXXX)
trap 'rm -rf "$link"' EXIT
ln -s "$library" "$link/libnccl-net-deft.so"
program=$build/gpu-allreduce
failed=0
common=(env NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2
        NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS="INIT,NET")
# ranks NAME VARIABLE...: the two ranks in this environment, their result in NAME.json. What fails, or hangs, does not keep the
# rest from being measured.
ranks() {
    local name=$1 status=0
    shift
    timeout -k 10 180 "${common[@]}" NCCL_DEBUG_FILE="$logs/$name.%p" "$@" "$program" >"$logs/$name.json" || status=$?
    [ "$status" -eq 0 ] || wrong "$name" "exit code $status; 124: no end in 180 s"
}
wrong() {  # NAME WHY: said, in the result, and a failure
    say "FAILED: $1: $2; see $logs"
    printf '{"failed": "%s"}\n' "$2" >"$logs/$1.json"
    failed=1
    return 1
}
hooks_in_path() {  # both ranks say so
    "$python" - "$logs" <<'PYTHON'
import glob, json, os, sys
files = [json.load(open(path)) for path in glob.glob(os.path.join(glob.escape(sys.argv[1]), "observe-*.json"))]
sys.exit(len(files) < 2 or not all(file.get("hooks", {}).get("in_path") for file in files))
PYTHON
}
if [ -z "$missing" ]; then
    g++ -std=c++20 -O2 "${includes[@]}" perf/gpu/allreduce.cpp -o "$program" "$nccl_lib" "$driver" \
        -Wl,-rpath,"$(dirname "$nccl_lib")" -Wl,-rpath,"$(dirname "$driver")" -Wl,--allow-shlib-undefined \
        2>"$logs/compiler.txt" || missing="compiler that takes these headers ($logs/compiler.txt)"
fi
if [ -n "$missing" ]; then
    say "the two ranks without PyTorch are left out: no $missing"
    for part in socket deft; do printf '{"skipped": "a part is missing"}\n' >"$logs/$part.json"; done
else
    say "two ranks over NCCL's own socket transport"
    ranks socket NCCL_NET_PLUGIN=none || true
    say "two ranks through deft"
    if ranks deft LD_PRELOAD="$link/libnccl-net-deft.so" NCCL_NET_PLUGIN="$link/libnccl-net-deft.so" \
        DEFT_INTERFACES=lo DEFT_MODE=observe DEFT_OUT="$logs/observe-%r-%p.json"; then
        if ! grep -qhiE 'Using network deft' "$logs"/deft.*; then
            wrong deft "NCCL did not use the plugin" || true
        elif ! hooks_in_path; then
            wrong deft "the hooks were not in the path of both ranks" || true
        fi
    fi
fi

say "PyTorch DDP, two ranks, in every mode"
trap 'exit 130' INT   # ddp_modes.py ends its ranks and exits, which the shell would take for a failed run
ddp=0
"$python" perf/gpu/ddp_modes.py --library "$library" --json "$logs/ddp.json" "${ddp_options[@]}" >&2 || ddp=$?
[ "$ddp" -ne 3 ] || printf '{"skipped": "no PyTorch with CUDA"}\n' >"$logs/ddp.json"
[ -z "$missing" ] || [ "$ddp" -ne 3 ] || { say "nothing was measured"; exit 3; }
[ -e "$logs/ddp.json" ] || printf '{"failed": "see above"}\n' >"$logs/ddp.json"

mkdir -p perf/results
result=perf/results/gpu-$(tr -cs 'A-Za-z0-9' '-' <<<"$gpu" | sed 's/-*$//').json
"$python" - "$logs" "$result" "$gpu" "$(git describe --always --dirty 2>/dev/null || echo unknown)" <<'PYTHON'
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
for rank in out["observe"]:
    (rank["library"] or {}).pop("path", None)  # a folder of this run
json.dump(out, open(result, "w"), indent=1)
print(json.dumps(out, indent=1))
PYTHON
say "written: $result"
[ "$failed" -eq 0 ] || exit 1
[ -z "$missing" ] || [ "$ddp" -ne 0 ] || exit 3
exit "$ddp"
