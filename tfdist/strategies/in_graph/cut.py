"""Cuts the layers of a model into pipeline stages.

stage_of_layer = cut([1, 1, 1, 3], stages=2)  # [0, 0, 0, 1]
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate


def cut(costs: Sequence[float], stages: int) -> list[int]:
    """Cuts a sequence of items into contiguous stages so that the most expensive one is cheapest.

    The result is exact: dynamic programming over the number of stages and the items before a cut,
    in O(stages * items**2). Of several best cuts it returns the one whose last stages are longest.

    Args:
      costs: the cost of each item, at least 0, in any one unit: seconds, parameters, bytes.
      stages: the number of stages, from 1 to that of the items.

    Returns:
      The stage of each item, ascending from 0. Each stage has at least one item.
    """
    cost_before = [0, *accumulate(costs)]

    @functools.cache
    def best(stage: int, end: int) -> tuple[float, int]:
        """The lowest cost of the most expensive stage up to `stage`, if that ends before the item
        `end`; and the item at which it begins."""
        if stage == 0:
            return cost_before[end], 0
        return min(
            (max(best(stage - 1, begin)[0], cost_before[end] - cost_before[begin]), begin)
            for begin in range(stage, end)
        )

    stage_of_item = [0] * len(costs)
    end = len(costs)
    for stage in range(stages - 1, 0, -1):
        _, begin = best(stage, end)
        stage_of_item[begin:end] = [stage] * (end - begin)
        end = begin
    return stage_of_item
