# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of an iteration, computed apart from deft's planner (docs/planner.md has the
formulas and their sources).

`ready` are seconds from the start of the iteration, `costs` seconds each bucket holds all links
together at their summed rate.
"""


def costs(bytes_of_buckets, gbit_per_s, ranks):
    """A ring all-reduce sends and receives 2 (n - 1) / n of a message on every rank; both
    directions run at once."""
    return [8e-9 * size * 2 * (ranks - 1) / ranks / gbit_per_s for size in bytes_of_buckets]


def synchronous(compute, ready, cost):
    """The update waits for all gradients of its own iteration: bucket i is not sent before it is
    ready."""
    end = compute
    for first, start in enumerate(ready):
        end = max(end, start + sum(cost[first:]))
    return end


def waiting_layers(compute, ready, cost, forward):
    """Each layer waits for its own gradient, in the next forward pass. `forward`: seconds of it. A
    bucket's layers take the share of it that they take of backward; an iteration begins with it."""
    end = compute
    for first, start in enumerate(ready):
        needed = forward * (1 - (start - forward) / (compute - forward))   # from its beginning
        end = max(end, start + sum(cost[first:]) - max(needed, 0.0))
    return end


def carried(compute, ready, cost, carry):
    """As synchronous(), where the cores that compute also carry the bytes: all transfers
    together take `carry` seconds of theirs, so that compute is slower while a transfer is under
    way."""
    share = min(carry / sum(cost), 0.99) if sum(cost) > 0 else 0.0
    now = done = free = 0.0   # time, compute done by then, when the links are free again
    for at, holds in zip([*ready, compute], [*cost, 0.0]):
        if free > now and at > done:
            slow = min((free - now) * (1 - share), at - done)
            now, done = now + slow / (1 - share), done + slow
        now, done = now + max(0.0, at - done), max(at, done)
        free = max(free, now) + holds
    return max(now, free)


def of_mode_carried(mode, compute, ready, cost, carry, max_merge=2):
    """of_mode() where the cores that compute also carry the bytes. For exact and deft."""
    together = carried(compute, ready, cost, carry)
    if mode != "deft":
        return together
    return min(max(compute + carry, sum(cost)), (together + (max_merge - 1) * compute) / max_merge)


def delayed(compute, cost, max_merge):
    """Gradients may be an iteration late and max_merge iterations may share a transfer: only the
    volume holds it up."""
    return max(compute, sum(cost) / max_merge)


def merged(compute, ready, cost, max_merge):
    """Every max_merge-th iteration sends, and waits for, the sums of all buckets; the others
    send nothing."""
    return (synchronous(compute, ready, cost) + (max_merge - 1) * compute) / max_merge


def late_or_merged(compute, ready, cost, max_merge):
    """Gradients may be an iteration late, or max_merge iterations may share a transfer, not
    both: what mode deft does unless both caps are set. (It merges only where that is 5 % faster,
    which is its choice, and no part of the bound.)"""
    return min(delayed(compute, cost, 1), merged(compute, ready, cost, max_merge))


def sharded(compute, layers, gather, scatter):
    """Parameters are gathered for the forward pass and again for the backward pass, one layer ahead
    of compute, and gradients scattered as they are made; the update waits for all. `gather` and
    `scatter` are seconds each layer's holds all links. The calls of a communicator go one after the
    other in the order in which they are made."""
    forward, backward = compute / 3 / layers, 2 * compute / 3 / layers
    link = now = 0.0

    def carry(ready, cost):
        nonlocal link
        link = max(link, ready) + cost
        return link
    ends = [0.0] * layers
    there = {0: carry(0.0, gather)}
    for layer in range(layers):
        if layer + 1 < layers:
            there[layer + 1] = carry(ends[layer - 1] if layer > 0 else 0.0, gather)
        now = ends[layer] = max(now, there[layer]) + forward
    there[layers - 1] = carry(ends[layers - 1], gather)
    for layer in reversed(range(layers)):
        if layer > 0:
            there[layer - 1] = carry(ends[layer + 1] if layer + 1 < layers else 0.0, gather)
        now = ends[layer] = max(now, there[layer]) + backward
        carry(now, scatter)
    return max(now, link)


def of_mode(mode, compute, ready, cost, max_merge=2):
    if mode == "deft":
        return late_or_merged(compute, ready, cost, max_merge)
    if mode == "layers":
        return waiting_layers(compute, ready, cost, compute / 3)
    if mode == "covap":
        return delayed(compute, cost, max_merge)
    return synchronous(compute, ready, cost)
