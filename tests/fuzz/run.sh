#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh FUZZER CORPUS KEPT [LIBFUZZER_OPTION...]
# Runs a libFuzzer target for FUZZ_SECONDS (60) over CORPUS. What it finds beyond that is kept in KEPT, where the next run
# starts, and an input that breaks it in KEPT/broken-*.
set -eu
fuzzer=$1 corpus=$2 kept=$3
shift 3
mkdir -p "$kept"
exec "$fuzzer" -max_total_time="${FUZZ_SECONDS:-60}" -seed="${FUZZ_SEED:-1}" -print_final_stats=1 \
    -artifact_prefix="$kept/broken-" "$@" "$kept" "$corpus"
