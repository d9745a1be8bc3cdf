"""What an Estimator's training says of itself, in a session of its own."""

from __future__ import annotations

from itertools import count

import pytest
import tensorflow as tf

from tfdist.coordination.liveness.activity import Activity
from tfdist.coordination.preemption import Preemption
from tfdist.estimator.progress_hook import ProgressHook

pytestmark = pytest.mark.stacks("2.15")


def test_the_step_the_loss_and_the_goal() -> None:
    activity, preemption = Activity("worker:0"), Preemption()
    lines: list[tuple[int, dict[str, float]]] = []
    # A step takes half a second.
    ticks = count(100.0, 0.25)
    hook = ProgressHook(
        activity,
        preemption,
        max_steps=50,
        add_line=lambda *line: lines.append(line),
        every_n_steps=8,
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
    assert abs(state.resumed - state.loss) <= 1
    assert len(lines) in (2, 3)
    last, values = lines[-1]
    assert last == 20
    assert values["loss"] == state.loss
    # In a second of the clock there are at most four looks.
    assert 0 < values["steps_per_second"] <= 4
