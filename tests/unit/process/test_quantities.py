"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest

from tfdist.process import quantities

pytestmark = pytest.mark.stacks("newest")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1.0, "0.0 s"),
        (0.44, "0.4 s"),
        (12.4, "12 s"),
        (59.6, "1 min 0 s"),
        (72, "1 min 12 s"),
        (3 * 3600 + 5 * 60 + 59, "3 h 5 min"),
        (2 * 86400 + 4 * 3600, "2 d 4 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, expected: str) -> None:
    assert quantities.duration(seconds) == expected


def test_sizes_rates_and_losses_are_short() -> None:
    assert [quantities.size(number) for number in (4e5, 612e6, 1.44e9)] == [
        "0.4 MB",
        "612 MB",
        "1.4 GB",
    ]
    assert [quantities.rate(number) for number in (0.421, 98.4, 12345.6)] == [
        "0.42",
        "98",
        "12,346",
    ]
    assert quantities.value(0.0333333) == "0.03333"
    assert quantities.value(math.nan) == "nan"
    assert quantities.value(-math.inf) == "", "it is not known"
