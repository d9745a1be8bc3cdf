"""Cuts the layers of a model into pipeline stages.

stage_of_layer = cut([1, 1, 1, 3], stages=2)  # [0, 0, 0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate


def cut(costs: Sequence[float], stages: int) -> list[int]:
    """Cuts a sequence of items into contiguous stages so that the most expensive one is cheapest.

    The result is exact: dynamic programming over the number of stages and the items before a cut,
    in O(stages * items**2). Of several best cuts it returns the one whose last stages are longest.

    Args:
      costs: the cost of each item, at least 0, in any one unit: seconds, parameters, bytes.
      stages: the number of stages.

    Returns:
      The stage of each item, ascending from 0. Each stage has at least one item.

    Raises:
      ValueError: there are fewer items than stages, or no stage.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} items cannot be cut into {stages} stages.")
    cost_before = [0, *accumulate(costs)]
    # The cost of the most expensive stage, by the number of items, with one stage at first.
    greatest: list[float] = list(cost_before)
    # By stage from 1 and by the number of items: how many of them are in earlier stages.
    begins: list[list[int]] = []
    for stage in range(1, stages):
        best = [
            min(
                (max(greatest[begin], cost_before[end] - cost_before[begin]), begin)
                for begin in range(stage, end)
            )
            if end > stage
            else (math.inf, 0)
            for end in range(len(costs) + 1)
        ]
        greatest = [cost for cost, _ in best]
        begins.append([begin for _, begin in best])
    stage_of_item = [0] * len(costs)
    end = len(costs)
    for stage in range(stages - 1, 0, -1):
        begin = begins[stage - 1][end]
        stage_of_item[begin:end] = [stage] * (end - begin)
        end = begin
    return stage_of_item
