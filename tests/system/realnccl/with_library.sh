#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test's job with an NCCL library that the user names in SOFTDEV_NCCL, on the software device.
#
# usage: with_library.sh CUDA_FOLDER NVML_FOLDER KERNELS TEST [ARGUMENT...]
#
# Exits with 77 where no library is named. NCCL's settings are passed in TEST_NCCL_SETTINGS: tests
# start their jobs without anything of NCCL's in the environment.
set -eu
cuda=$1 nvml=$2 kernels=$3
shift 3
if [ -z "${SOFTDEV_NCCL:-}" ]; then
    echo "skipped: SOFTDEV_NCCL names no library (softdev/nccl_kernels/README.md)"
    exit 77
fi
if [ ! -f "$SOFTDEV_NCCL" ]; then
    echo "SOFTDEV_NCCL=$SOFTDEV_NCCL: no such file" >&2
    exit 1
fi
case $(basename "$SOFTDEV_NCCL") in
libnccl.so.2) ;;
*)
    echo "SOFTDEV_NCCL=$SOFTDEV_NCCL: the file has to be named libnccl.so.2" >&2
    exit 1
    ;;
esac
folder=$(cd "$(dirname "$SOFTDEV_NCCL")" && pwd)
# Another build's libraries would come first from the caller's path.
LD_LIBRARY_PATH=$folder:$cuda:$nvml
SOFTDEV_KERNELS=$kernels
# "any": NCCL chooses, but for PAT, which the kernels here do not have.
case ${TEST_NCCL_ALGO:-Ring} in
any) algorithm=NCCL_PAT_ENABLE=0 ;;
*) algorithm=NCCL_ALGO=${TEST_NCCL_ALGO:-Ring} ;;
esac
TEST_NCCL_SETTINGS="${TEST_NCCL_SETTINGS:-} $algorithm NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1 \
NCCL_RAS_ENABLE=0"
# NCCL's threads spin: on few cores everything takes its time.
SOFTDEV_DEADLINE=${SOFTDEV_DEADLINE:-240}
export LD_LIBRARY_PATH SOFTDEV_KERNELS SOFTDEV_DEADLINE TEST_NCCL_SETTINGS
exec "$@"
