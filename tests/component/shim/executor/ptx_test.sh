#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The committed PTX is what kernels.cu gives. Register numbers differ between compilers, so another nvcc than the one it was
# made with must only yield the same kernels with the same parameters.
set -euo pipefail
root=$1
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if [ ! -x "$nvcc" ]; then
    echo "skipped: no nvcc"
    exit 77
fi
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
NVCC=$nvcc "$root/shim/executor/regenerate_ptx.sh" "$fresh"
if cmp -s "$fresh" "$root/shim/executor/kernels_ptx.inc"; then
    echo "identical"
    exit 0
fi
entries() { grep -E '\.visible \.entry|\.param' "$1" | grep -v 'ld\.param'; }
if [[ $("$nvcc" --version) == *"release 13.0"* ]]; then
    echo "kernels_ptx.inc is not what kernels.cu gives: run shim/executor/regenerate_ptx.sh"
    exit 1
fi
diff <(entries "$fresh") <(entries "$root/shim/executor/kernels_ptx.inc")
