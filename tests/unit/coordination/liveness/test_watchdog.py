"""When the watchdog reports that a task makes no step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import Activity
from tfdist.coordination.liveness.watchdog import Watchdog

pytestmark = pytest.mark.stacks("newest")


class Training:
    """A watched task with a clock of its own."""

    def __init__(
        self, step_timeout: float | None = None, is_in_step: Callable[[], bool] | None = None
    ) -> None:
        self.now, self.steps = 0.0, 0
        self.silences: list[float] = []
        self.activity = Activity("worker:1")
        self.watchdog = Watchdog(
            self.activity,
            lambda: self.steps,
            step_timeout,
            self.silences.append,
            is_in_step=is_in_step,
            clock=lambda: self.now,
        )
        self.watchdog.look()

    def wait(self, seconds: float) -> None:
        """Looks again and again; ends when the watchdog has reported."""
        until = self.now + seconds
        while self.now < until and not self.silences:
            self.now += self.watchdog.poll_seconds
            self.watchdog.look()

    def step(self, seconds: float = 0.0) -> None:
        """Makes a step that takes some time."""
        self.wait(seconds)
        self.steps += 1
        self.now += self.watchdog.poll_seconds
        self.watchdog.look()


def test_a_step_may_take_sixty_seconds() -> None:
    training = Training()
    training.step()
    training.wait(59)
    assert training.silences == []
    training.wait(2)
    assert training.silences == [pytest.approx(60, abs=1)]


def test_a_step_may_take_ten_times_the_slowest_so_far() -> None:
    training = Training()
    training.step(20)
    training.step()
    training.wait(200)
    assert training.silences == []
    training.wait(20)
    assert len(training.silences) == 1


def test_the_flag_sets_the_time() -> None:
    training = Training(step_timeout=5)
    training.step(4)
    training.wait(4)
    assert training.silences == []
    training.wait(2)
    assert training.silences == [pytest.approx(5, abs=0.6)]


@pytest.mark.parametrize(
    "doing",
    [
        activity.STARTING,
        activity.BETWEEN_EPOCHS,
        activity.EVALUATING,
        activity.SAVING,
        activity.EXPORTING,
    ],
)
def test_what_is_no_step_has_ten_times_as_long(doing: str) -> None:
    training = Training(step_timeout=5)
    training.step()
    training.activity.enter(doing)
    training.wait(49)
    assert training.silences == []
    training.wait(2)
    assert len(training.silences) == 1


def test_a_step_ends_the_time_between_epochs_but_no_save() -> None:
    training = Training()
    training.step()
    training.activity.enter(activity.BETWEEN_EPOCHS)
    training.watchdog.look()
    assert training.activity.state.doing == activity.BETWEEN_EPOCHS
    training.step()
    assert training.activity.state.doing == activity.TRAINING
    with training.activity.doing(activity.SAVING):
        training.step()
        assert training.activity.state.doing == activity.SAVING
    assert training.activity.state.doing == activity.TRAINING


def test_a_session_is_between_steps_while_its_hooks_run() -> None:
    is_in_step = True
    training = Training(step_timeout=5, is_in_step=lambda: is_in_step)
    training.step()
    is_in_step = False
    training.wait(49)
    assert training.silences == []
    assert training.activity.state.doing == activity.BETWEEN_STEPS
    is_in_step = True
    training.wait(1)
    assert len(training.silences) == 1


def test_time_in_which_the_process_was_suspended_does_not_count() -> None:
    training = Training(step_timeout=5)
    training.step()
    training.now += 1000
    training.watchdog.look()
    training.wait(3)
    assert training.silences == []
    training.wait(3)
    assert len(training.silences) == 1
