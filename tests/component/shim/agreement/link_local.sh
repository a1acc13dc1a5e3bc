#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that meet at an IPv6 link-local address, on a host with two links: only one leads there.
# usage: link_local.sh RELAY_TEST
if [ -z "$DEFT_TEST_INSIDE" ]; then
    [ "$(id -u)" = 0 ] && user="" || user="-r"
    unshare $user -n true 2>/dev/null || { echo "skipped: neither root nor user namespaces"; exit 77; }
    DEFT_TEST_INSIDE=1 exec unshare $user -n -- "$0" "$@"
fi
ip link set lo up || exit 1
for link in wrong right; do
    ip link add "$link" type veth peer name "$link-end" ||
        { echo "skipped: this kernel has no veth"; exit 77; }
    ip link set "$link-end" up
    ip link set "$link" up
    ip addr flush dev "$link"
done
ip addr add fe80::1/64 dev wrong nodad || { echo "skipped: no IPv6"; exit 77; }
ip addr add fe80::2/64 dev right nodad || exit 1
TEST_LINK_LOCAL=1 exec "$1" --gtest_filter='*LinkLocal*'
