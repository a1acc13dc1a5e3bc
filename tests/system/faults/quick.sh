#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The quick form of perf/faults: deft through a fault of every kind. usage: quick.sh SOURCE BUILD
# How soon an error comes is measured there; here it only has to come.
# Exit code 77, with the reason, where hosts or relayed links cannot be made.
status=0
python3 "$1/perf/faults" --quick --slack 20 --build "$2" || status=$?
[ "$status" -ne 3 ] || exit 77
exit "$status"
