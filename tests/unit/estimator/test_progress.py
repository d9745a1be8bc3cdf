"""What an Estimator's training says of itself, in a session of its own."""

from __future__ import annotations

from itertools import count

import pytest
import tensorflow as tf

from tfdist.coordination.preemption import Preemption
from tfdist.coordination.reports.activity import Activity
from tfdist.estimator.progress import ProgressHook

pytestmark = pytest.mark.stacks("2.15")


class Kept:
    """Keeps what is sent to trackers."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, float], int]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.sent.append((values, step))


def test_the_step_the_loss_and_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    activity, preemption, kept = Activity("worker:0"), Preemption(), Kept()
    # A step takes half a second.
    ticks = count(100.0, 0.25)
    hook = ProgressHook(
        activity,
        preemption,
        max_steps=50,
        trackers=kept,  # type: ignore[arg-type]
        clock=lambda: next(ticks),
    )
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOSSES, tf.cast(step, tf.float32))
        advance = step.assign_add(1)
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(20):
                session.run(advance)
            activity.made(3)
    state = activity.state
    assert state.goal == 50
    # A second may pass after the last look.
    assert 15 <= state.loss <= 20
    # None of the steps is this task's own.
    assert state.resumed in (state.loss, state.loss + 1)
    values, last = kept.sent[-1]
    assert values["loss"] == state.loss
    assert last == state.resumed
    assert values["steps_per_second"] > 0
