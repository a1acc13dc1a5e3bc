#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts with two links run a job over NCCL's own library. One link goes down in its middle: every
# sum is right all the same, and the reports name the link that was lost. Or both carry nothing any
# more: both ranks hear of it and can abort.
#
# usage: cut.sh PLUGIN JOB one|both SCENARIO [SETTING...]
set -u
# shellcheck disable=SC2086 # words
if [ -z "${DEFT_TEST_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] && user="" || user="-r"
    unshare $user -n true 2>/dev/null || { echo "skipped: neither root nor user namespaces"; exit 77; }
    DEFT_TEST_INSIDE=1 exec unshare $user -n -- "$0" "$@"
fi
plugin=$1 job=$2 cut=$3 scenario=$4
shift 4
settings="$*"
unset DEFT_TEST_INSIDE
folder=$(mktemp -d)
hosts="" ranks=""
# shellcheck disable=SC2086 # lists of process ids
trap 'kill $ranks $hosts 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT
fail() {
    echo "$1" >&2
    tail -n 20 "$folder"/*.err >&2
    exit 1
}
for _ in 1 2; do
    unshare -n sleep 300 &
    hosts="$hosts $!"
done
sleep 0.3
set -- $hosts
inside() { # HOST COMMAND...
    pid=$1
    shift
    nsenter -t "$pid" -n "$@"
}
for link in 0 1; do
    ip link add eth$link netns "$1" type veth peer name eth$link netns "$2" || fail "no veth"
    end=1
    for pid in "$1" "$2"; do
        inside "$pid" ip addr add 10.77.$link.$end/24 dev eth$link
        inside "$pid" ip link set eth$link up
        inside "$pid" ip link set lo up
        inside "$pid" tc qdisc add dev eth$link root tbf rate 300mbit burst 256kb latency 50ms \
            2>/dev/null
        end=2
    done
done
# The kernel reports the carrier a moment after both ends are up.
for pid in "$1" "$2"; do
    for link in 0 1; do
        tries=0
        until inside "$pid" ip link show eth$link | grep -q 'state UP'; do
            tries=$((tries + 1))
            [ $tries -lt 100 ] || fail "eth$link does not come up"
            sleep 0.1
        done
    done
done
rank=0
for pid in "$1" "$2"; do
    # shellcheck disable=SC2086 # settings are words
    inside "$pid" env ${TEST_NCCL_SETTINGS:-} NCCL_SOCKET_IFNAME=eth0 NCCL_HOSTID=host$rank \
        NCCL_SHM_DISABLE=1 DEFT_INTERFACES=eth0,eth1 DEFT_LOG=info DEFT_WARMUP=10 \
        DEFT_GRADIENTS=trust $settings \
        DEFT_OUT="$folder/rank%r.json" NCCL_NET_PLUGIN="$plugin" LD_PRELOAD="$plugin" \
        "$job" "$scenario" $rank 2 "$folder/id" >"$folder/rank$rank.out" 2>"$folder/rank$rank.err" &
    ranks="$ranks $!"
    rank=$((rank + 1))
done
for rank in 0 1; do
    tries=0
    until grep -q begun "$folder/rank$rank.err"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "rank $rank does not begin"
        sleep 0.1
    done
done
sleep 1
[ -z "$(cat "$folder/rank0.out")" ] || fail "the job was over before the link was cut"
if [ "$cut" = one ]; then
    inside "$1" ip link set eth1 down || fail "the link cannot be cut"
else
    # Frames to a machine that is not there: deft waits longer for a host without any carrier.
    for link in 0 1; do
        inside "$1" ip neigh replace 10.77.$link.2 lladdr 02:00:00:00:00:99 dev eth$link &&
            inside "$2" ip neigh replace 10.77.$link.1 lladdr 02:00:00:00:00:99 dev eth$link ||
            fail "the links cannot be cut"
    done
fi
for pid in $ranks; do
    wait "$pid" || fail "a rank failed"
done
ranks=""
if [ "$cut" = both ]; then
    for rank in 0 1; do
        grep '^heard of error [0-9]*, aborted$' "$folder/rank$rank.out" ||
            fail "rank $rank: did not hear of it"
    done
    exit 0
fi
for rank in 0 1; do
    grep -q '^checked [0-9]* wrong 0$' "$folder/rank$rank.out" || fail "rank $rank: wrong sums"
    cat "$folder/rank$rank.out"
    # The link carried bytes, and its state changed.
    python3 -c 'import json, sys
links = {link["name"]: link for link in json.load(open(sys.argv[1]))["links"]}
print(links)
sys.exit(not (links["eth1"]["bytes_sent"] > 0 and links["eth1"]["transitions"] > 0))' \
        "$folder/rank$rank.json" || fail "rank $rank: the report does not tell of the cut"
done
