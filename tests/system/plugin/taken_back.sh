#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Memory that is taken back while it is sent, over a link whose queue holds the packets that were
# made of it for milliseconds, and the reset behind them. usage: taken_back.sh PLUGIN_TCP_TEST
if [ -z "$DEFT_TEST_INSIDE" ]; then
    [ "$(id -u)" = 0 ] && user="" || user="-r"
    unshare $user -n true 2>/dev/null || { echo "skipped: neither root nor user namespaces"; exit 77; }
    DEFT_TEST_INSIDE=1 exec unshare $user -n -- "$0" "$@"
fi
ip link set lo up || exit 1
tc qdisc add dev lo root tbf rate 20mbit burst 40kb limit 4mb ||
    { echo "skipped: this kernel has no tbf"; exit 77; }
exec "$1" --gtest_filter='Pages.TakenBack*'
