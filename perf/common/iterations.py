# SPDX-License-Identifier: Apache-2.0
"""Typical times of iterations."""

import statistics


def typical(times, period=1):
    """The median over the last whole periods of `times` of their mean. Under a plan that merges,
    iterations that send and iterations that send nothing take turns: the middle of all of them
    would be one of either, or half of their sum, by chance. 0 where there are none."""
    period = max(1, min(int(period or 1), len(times)))
    blocks = ([times[end - period:end] for end in range(len(times), period - 1, -period)] if times
              else [])
    return statistics.median(statistics.fmean(block) for block in blocks) if blocks else 0.0


def period_of(plan):
    """Iterations until the plan in force repeats itself; 1 if none is. `plan`: as deft's report
    has it."""
    return plan.get("period", 1) if plan.get("state") == "running" else 1
