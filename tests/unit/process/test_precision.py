"""The choice of a precision by a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tfdist.process import precision

pytestmark = pytest.mark.stacks("2.15", "newest")


def clock(seconds: dict[str, float]) -> Iterator[float]:
    """The start, and then the times around a multiplication in each dtype, in turn."""
    now = 0.0
    yield now
    for turn in range(3):
        if turn:
            yield now  # Whether the time is over.
        for dtype in ("float32", "bfloat16"):
            yield now
            now += seconds[dtype] * (1 + turn)  # Later turns are disturbed.
            yield now
    yield 1e9  # It is over.


def test_the_ratio_is_that_of_the_fastest_multiplications() -> None:
    times = clock({"float32": 6.0, "bfloat16": 2.0})
    assert precision.bfloat16_ratio(25.0, partial(next, times)) == 3.0
    assert next(times, None) is None, "turns of 8, 16 and 24 seconds begin within 25 seconds"


def test_a_measurement_takes_a_quarter_of_a_second() -> None:
    assert precision.bfloat16_ratio() > 0.0


@pytest.mark.parametrize(
    ("ratio", "policy"), [(0.5, "float32"), (1.1, "float32"), (1.3, "mixed_bfloat16")]
)
def test_auto_takes_bfloat16_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, ratio: float, policy: str
) -> None:
    monkeypatch.setattr(precision, "bfloat16_ratio", lambda: ratio)
    chosen = precision.choose("auto")
    assert chosen == precision.Precision(policy, ratio)
    assert str(chosen) == f"{policy} (bfloat16 is {ratio} times as fast as float32 here)"


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_policy_is_not_measured(policy: str) -> None:
    assert precision.choose(policy) == precision.Precision(policy)
    assert str(precision.choose(policy)) == policy
