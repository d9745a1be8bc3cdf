"""Executions grow to about 0.1 s, longer with many workers, or to the limit of the user."""

from __future__ import annotations

import pytest

from tfdist.strategies.parameter_server.steps.execution_length import ExecutionLength

pytestmark = pytest.mark.stacks("2.15", "newest")


def lengths(length: ExecutionLength, seconds_per_step: float, executions: int) -> list[int]:
    found = []
    for _ in range(executions):
        length.measured(length.steps, length.steps * seconds_per_step)
        found.append(length.steps)
    return found


def test_runs_of_small_steps_grow() -> None:
    assert lengths(ExecutionLength(2), 0.00999, 6) == [2, 4, 8, 10, 10, 10]


def test_runs_are_longer_with_many_workers() -> None:
    assert lengths(ExecutionLength(16), 0.00999, 8)[-1] == 64
    assert lengths(ExecutionLength(1000), 0.00999, 12)[-1] == 300


def test_runs_of_long_steps_have_one_step() -> None:
    assert lengths(ExecutionLength(2), 0.2, 3) == [1, 1, 1]


def test_the_user_decides_the_length_of_runs() -> None:
    length = ExecutionLength(2)
    length.limit = 5
    assert lengths(length, 10.0, 4) == [2, 4, 5, 5]


def test_runs_become_shorter_when_the_steps_become_longer() -> None:
    length = ExecutionLength(2)
    lengths(length, 0.001, 8)
    assert lengths(length, 0.02, 1) == [5]


def test_a_run_without_steps_changes_nothing() -> None:
    length = ExecutionLength(2)
    length.measured(0, 9.0)
    assert (length.steps, length.seconds) == (1, 0.0)
