# SPDX-License-Identifier: Apache-2.0
"""What each update gets under a plan, in one process: plans as the planner writes them are carried
out on whole gradients."""

import hashlib
import json


def identity(answer):
    """Of two answers of the library's with the same, every update gets the same; "plain": of its
    own iteration, whole."""
    plan = answer["plan"]
    parts = []
    for one in plan["deliveries"]:
        size = plan["bucket_bytes"][one["bucket"]]
        parts.append((one["iteration"], one["bucket"], round(one["begin"] / size, 3),
                      round(one["end"] / size, 3), one["first"], one["count"]))
    if plan["period"] == 1 and all(part[-2:] == (0, 1) for part in parts):
        return "plain"
    late = any(one["first"] + one["count"] - 1 < one["iteration"] for one in plan["deliveries"])
    weights = answer["factors"] if late else []
    text = json.dumps([sorted(parts), weights, answer.get("residual", False)])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def generations(merge, delay, factors=()):
    """As of a library's answer: sums of `merge` gradients, used `delay` iterations late."""
    last = merge - 1 + delay   # of the iterations from the first gradient on
    return {"plan": {"period": merge, "bucket_bytes": [1],
                     "deliveries": [{"iteration": last % merge, "bucket": 0, "begin": 0, "end": 1,
                                     "first": last % merge - last, "count": merge}]},
            "factors": list(factors)}


def kappa(iteration, interval):
    """Of covap's error feedback, by iterations under such plans (docs/accuracy.md)."""
    first, every = (0.5, 50) if interval <= 8 else (0.2, 100)
    return min(1.0, first + 0.1 * (iteration // every))


class Delivery:
    """Carries out one plan, from the iteration on in which it comes into force."""

    def __init__(self, answer, sizes):
        """`sizes`: elements of each bucket. `answer`: of the library (decisions.py); "residual":
        what is not sent is kept, as covap does."""
        plan = self.plan = answer["plan"]
        self.period, self.residual = plan["period"], answer.get("residual", False)
        self.factors = {tuple(key): value for key, value in answer["factors"]}
        self.offsets = [sum(sizes[:number]) for number in range(len(sizes))]
        self.pieces = [[] for _ in range(self.period)]
        self.cut = len(plan["deliveries"]) > self.period * len(sizes)
        for one in plan["deliveries"]:
            bucket, whole = one["bucket"], plan["bucket_bytes"][one["bucket"]]
            begin, end = (round(one[edge] / whole * sizes[bucket]) for edge in ("begin", "end"))
            self.pieces[one["iteration"]].append((self.offsets[bucket] + begin,
                                                  self.offsets[bucket] + end, one["first"],
                                                  one["count"]))
        oldest = min((first - at for at, pieces in enumerate(self.pieces)
                      for _, _, first, _ in pieces), default=0)
        self.kept = self.period - oldest + 1   # gradients
        self.gradients, self.before = {}, {}   # by iteration; by piece: sums with their counts
        self.iteration = 0

    def next(self, gradient):
        """(what the update gets, how many gradients its sums hold in the mean: 0, none)"""
        at = self.iteration
        self.iteration += 1
        self.gradients[at] = gradient
        self.gradients.pop(at - self.kept, None)
        update, merged, elements = gradient.new_zeros(gradient.shape), 0, 0
        for begin, end, first, count in self.pieces[at % self.period]:
            start = at - at % self.period + first
            there = [self.gradients[one][begin:end]
                     for one in range(start, start + count) if one in self.gradients]
            if not there:
                continue
            late = at - (start + count - 1)
            update[begin:end] = self._extrapolated((begin, end), late, self._sum(there, at, count),
                                                   len(there))
            merged += len(there) * (end - begin)
            elements += end - begin
        return update, merged / elements if elements else 0

    def _sum(self, there, at, interval):
        total = there[0]
        for number, one in enumerate(there[1:], 2):
            keep = kappa(at, interval) if self.residual else 1.0
            whole = self.residual and number == len(there) and not self.cut
            total = one + (1.0 if whole else keep) * total
        return total

    def _extrapolated(self, piece, late, total, count):
        before = self.before.get(piece, [])
        self.before[piece] = [(total, count), *before[:1]]
        counts = [one for _, one in before] + [0] * (2 - len(before))
        weights = (1.0, 0.0, 0.0)
        if late:
            weights = self.factors.get((late, count, *counts), weights)
        result = weights[0] * total
        for weight, (one, _) in zip(weights[1:], before):
            if weight:
                result = result + weight * one
        return result
