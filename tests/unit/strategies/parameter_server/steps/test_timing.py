"""What an epoch reports of its steps, from the seconds of the workers."""

from __future__ import annotations

import pytest

from tfdist.strategies.parameter_server.steps.timing import EpochTimes, Seconds

pytestmark = pytest.mark.stacks("2.15")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def times_of(steps: list[int], seconds: list[Seconds], *, elapsed: float) -> dict[str, float]:
    """The values of an epoch in which each worker has made its steps at once."""
    clock = Clock()
    times = EpochTimes(len(steps), clock)
    clock.now = elapsed
    for worker, (made, each) in enumerate(zip(steps, seconds, strict=True)):
        times.add(worker, made, each)
    return times.values()


def test_workers_that_are_always_busy_are_as_stale_as_there_are_others() -> None:
    found = times_of([50] * 3, [Seconds(10.0, 0.0, 4.0)] * 3, elapsed=10.0)
    assert found["staleness/mean"] == pytest.approx(2.0)
    assert found["staleness/max"] == pytest.approx(2.0)
    assert found["seconds/step"] == pytest.approx(0.2)
    assert found["seconds/communication"] == pytest.approx(0.08)
    assert found["seconds/compute"] == pytest.approx(0.12)


def test_a_slow_worker_is_staler_and_waiting_for_input_is_not_stale() -> None:
    slow, fast = Seconds(10.0, 0.0, 1.0), Seconds(10.0, 5.0, 1.0)
    found = times_of([10, 90], [slow, fast], elapsed=10.0)
    # In each of its steps, the other one makes nine.
    assert found["staleness/max"] == pytest.approx(9.0)
    # The fast one has half of its time for the ten steps of the slow one.
    assert found["staleness/mean"] == pytest.approx((90 + 5) / 100)
    assert found["seconds/input"] == pytest.approx(0.05)


def test_alone_nothing_is_stale() -> None:
    found = times_of([10], [Seconds(1.0, 0.0, float("nan"))], elapsed=1.0)
    assert found["staleness/mean"] == found["staleness/max"] == 0.0
    # Transfers that are not packed are not measured.
    assert "seconds/communication" not in found
    assert "seconds/compute" not in found


def test_without_a_step_nothing_is_known() -> None:
    assert EpochTimes(2).values() == {}
