#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles kernels.cu to kernels_ptx.inc (or to the file named), with the nvcc of the path or NVCC.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/kernels_ptx.inc}
nvcc=${NVCC:-nvcc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$nvcc" -ptx -O3 -std=c++14 -fmad=false -arch=compute_75 -o "$work/kernels.ptx" "$here/kernels.cu"
# The instructions are old; the newest version of the language is not needed, and would keep drivers
# older than the toolkit from loading them. 6.3 is what CUDA 10.0 knows. sm_70 (V100) has all of them; compilers of today give
# code for 7.5 at least, so ptxas checks below that the instructions are in the older target.
sed -i -e 's/^\.version .*/.version 6.3/' -e 's/^\.target .*/.target sm_70/' -e '/^\/\//d' -e '/^$/d' "$work/kernels.ptx"
ptxas=$(dirname "$(command -v "$nvcc")")/ptxas
if [ -x "$ptxas" ]; then
    "$ptxas" -arch=sm_75 -o /dev/null "$work/kernels.ptx"
fi
{
    echo '// SPDX-License-Identifier: Apache-2.0'
    echo '// Made by regenerate_ptx.sh from kernels.cu: do not edit.'
    # One literal a line: compilers limit the length of a raw one.
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' -e 's/.*/"&\\n"/' "$work/kernels.ptx"
} > "$out"
