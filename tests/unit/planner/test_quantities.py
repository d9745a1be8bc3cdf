"""Numbers with units: what is accepted, what is refused, and how they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.errors import UsageError
from tfdist.planner import quantities

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("1,000", 1000),
        ("12,345,678", 12_345_678),
        ("350k", 350_000),
        ("25M", 25_000_000),
        ("2.3M", 2_300_000),
        ("1.5B", 1_500_000_000),
        ("1.5G", 1_500_000_000),
        ("3e6", 3_000_000),
    ],
)
def test_a_count(text: str, expected: int) -> None:
    assert quantities.count("--parameters", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "25 Mio", "M", "inf", "nan", "2P", "11", "1e999M", "1e999999M"],
)
def test_a_wrong_count_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--workers: received .*; accepted: an integer from 1 to"):
        quantities.count("--workers", text, 10)


@pytest.mark.parametrize(
    "text", ["1,5M", "1,5", ",500", "1000,000", "1,,000", "1,000,00", "1.5,000"]
)
def test_a_comma_must_separate_thousands(text: str) -> None:
    with pytest.raises(UsageError, match=f"--parameters: received '{text}'"):
        quantities.count("--parameters", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16GB", 16e9), ("512MB", 512e6), ("8GiB", 2**33), ("1.5G", 1.5e9), ("100", 100), ("9B", 9)],
)
def test_a_size(text: str, expected: float) -> None:
    assert quantities.size("--memory", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10Gbit", 1.25e9),
        ("1Gbit/s", 125e6),
        ("20 Mbit", 2.5e6),
        ("100MB/s", 100e6),
        ("1.25GB", 1.25e9),
        ("800bit", 100),
    ],
)
def test_a_bandwidth(text: str, expected: float) -> None:
    assert quantities.bandwidth("--bandwidth", text) == expected


@pytest.mark.parametrize("text", ["", "10", "10G", "0Gbit", "-1Gbit", "fast", "1Gbit/h", "9e999B"])
def test_a_wrong_bandwidth_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--bandwidth: received .*10Gbit, 1Gbit/s or 100MB/s"):
        quantities.bandwidth("--bandwidth", text)


@pytest.mark.parametrize("text", ["0", "16 apples", "-1GB", "9e999GB"])
def test_a_wrong_size_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--memory: received .*8GiB"):
        quantities.size("--memory", text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0 B"), (36, "36 B"), (999.6e6, "1 GB"), (1.5e8, "150 MB"), (5.1234e12, "5.12 TB")],
)
def test_sizes_are_printed_with_three_digits(value: float, expected: str) -> None:
    assert quantities.size_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 s"),
        (1.234, "1.23 s"),
        (0.9999, "1 s"),
        (0.12, "120 ms"),
        (3.2e-5, "32 us"),
        (5e-10, "0.5 ns"),
        (86400, "86,400 s"),
    ],
)
def test_seconds_are_printed_with_three_digits(value: float, expected: str) -> None:
    assert quantities.seconds_text(value) == expected


@given(st.floats(1, 1e12))
def test_a_printed_size_is_accepted_and_nearly_the_same(value: float) -> None:
    text = quantities.size_text(value).replace(" ", "")
    assert quantities.size("--memory", text) == pytest.approx(value, rel=0.006)
    text = quantities.bandwidth_text(value)
    assert quantities.bandwidth("--bandwidth", text) == pytest.approx(value, rel=0.006)
