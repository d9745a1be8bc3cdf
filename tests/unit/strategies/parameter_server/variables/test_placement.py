"""Which ps a variable goes to, and when the user reads about an uneven result."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.variables.placement import Placement

pytestmark = pytest.mark.stacks("2.15", "newest")

KIB = 256  # of float32


def placed(num_ps: int, *sizes: int, width: int = 4) -> tuple[Placement, list[tf.Variable]]:
    """A placement of variables of these numbers of KiB, with the variables."""
    placement, variables = Placement(num_ps), []
    for size in sizes:
        # Not the value that the ps would store, only its size.
        variable = tf.Variable(tf.zeros([size * KIB // width, width]), shape=None)
        ps = placement.least_loaded()
        placement.count(variable, ps)
        placement.add(variable)
        variables.append(variable)
    return placement, variables


def test_a_variable_goes_to_the_ps_with_the_fewest_bytes() -> None:
    placement, variables = placed(3, 8, 1, 1, 4, 2, 3)
    assert placement.bytes_per_ps() == [8 << 10, 5 << 10, 6 << 10]
    # A deleted variable no longer counts.
    del variables[0]
    assert placement.bytes_per_ps() == [0, 5 << 10, 6 << 10]
    assert placement.least_loaded() == 0


class Freed(list[int]):
    """Bytes that change when all have been read, as when a variable is freed."""

    def __iter__(self) -> Iterator[int]:
        yield from list(super().__iter__())
        self[0] += 1


def test_a_variable_may_be_freed_while_a_ps_is_chosen() -> None:
    placement = Placement(2)
    placement._bytes = Freed([1, 8])
    assert placement.least_loaded() == 0


def test_slots_count_where_their_variable_lies() -> None:
    placement, variables = placed(2, 4, 1)
    slots = [tf.Variable(tf.zeros_like(variables[1])) for _ in range(2)]
    for slot in slots:
        placement.count(slot, ps=1)
        placement.add_slot(slot, variables[1])
    assert placement.bytes_per_ps() == [4 << 10, 3 << 10]
    assert [id(slot) for slot in placement.slots_of(variables[1])] == [id(slot) for slot in slots]
    assert placement.slots_of(variables[0]) == []


def test_even_placements_have_no_advice() -> None:
    assert placed(2, 4096, 3072, 1024)[0].advice() is None
    assert placed(1, 4096)[0].advice() is None
    assert placed(2)[0].advice() is None


def test_a_small_model_has_no_advice() -> None:
    placement, _variables = placed(3, 64, 1)
    assert placement.advice() is None


def test_the_advice_names_the_bytes_of_each_ps_and_a_value_that_balances_them() -> None:
    placement, _variables = placed(2, 8192, 64)
    advice = placement.advice()
    assert advice is not None
    assert "1.98 times the mean (ps:0 8.4 MB, ps:1 66 kB)" in advice
    match = re.search(r"Balance them with --partition_bytes=(\d+)\.", advice)
    assert match
    size = int(match[1]) >> 10

    parts = -(-8192 // size)
    balanced, _variables = placed(2, *[8192 // parts] * parts, 64)
    assert balanced.advice() is None


def test_the_advice_is_honest_if_no_partition_helps() -> None:
    # One row is too large for the ps to be even.
    placement, _variables = placed(2, 8192, 64, width=8192 * KIB)
    advice = placement.advice()
    assert advice is not None
    assert "Use fewer parameter servers" in advice
