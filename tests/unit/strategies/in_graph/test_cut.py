"""Cutting layers into stages, compared with trying all cuts."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.strategies.in_graph.cut import cut

pytestmark = pytest.mark.stacks("2.15", "newest")


def greatest(costs: list[int], stage_of_item: list[int]) -> int:
    """The cost of the most expensive stage."""
    return max(
        sum(cost for cost, own in zip(costs, stage_of_item, strict=True) if own == stage)
        for stage in set(stage_of_item)
    )


def least_greatest(costs: list[int], stages: int) -> int:
    """The same for the best of all cuts."""
    found = []
    for inner in combinations(range(1, len(costs)), stages - 1):
        ends = [0, *inner, len(costs)]
        found.append(max(sum(costs[begin:end]) for begin, end in pairwise(ends)))
    return min(found)


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([5], 1, [0]),
        ([1, 1, 1, 3], 2, [0, 0, 0, 1]),
        ([3, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 9, 1], 3, [0, 1, 2]),
        ([0, 0, 0], 2, [0, 1, 1]),
        ([0.5, 0.5, 1.0], 2, [0, 0, 1]),
        ([4, 2, 3, 3, 3], 3, [0, 1, 1, 2, 2]),
    ],
)
def test_the_cut(costs: list[float], stages: int, expected: list[int]) -> None:
    assert cut(costs, stages) == expected


@given(st.data(), st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_no_other_cut_is_better(data: st.DataObject, costs: list[int]) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = cut(costs, stages)
    assert found == sorted(found)
    assert set(found) == set(range(stages))
    assert greatest(costs, found) == least_greatest(costs, stages)
