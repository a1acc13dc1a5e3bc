#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: nvcc_test.sh SOURCE_ROOT LIBRARY_DIR NVCC
# Builds twin.cu with the real nvcc against the software device, in both default-stream modes, and runs it.
set -eu
root=$1 libraries=$2 nvcc=$3
command -v "$nvcc" >/dev/null 2>&1 || { echo "skipped: no nvcc (looked for $nvcc)"; exit 77; }
case $("$nvcc" --version) in *"release 13."*) ;; *) echo "skipped: not an nvcc of CUDA 13"; exit 77 ;; esac
# nvcc splits its options and TMPDIR at blanks: it sees links in a folder whose path has none.
case ${TMPDIR:-/tmp} in *" "*) export TMPDIR=/tmp ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$root" "$work/root"
ln -s "$libraries" "$work/libraries"
root=$work/root libraries=$work/libraries
for mode in legacy per-thread; do
    "$nvcc" -cudart shared --default-stream "$mode" -std=c++17 -I "$root" \
        "$root/tests/component/softdev/cuda/twin.cu" -o "$work/twin-$mode" \
        -L "$libraries" -l:libcuda.so.1 -Xlinker -rpath="$libraries" -Xlinker -rpath-link="$libraries"
    LD_LIBRARY_PATH=$libraries "$work/twin-$mode"
done
