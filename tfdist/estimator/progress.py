"""The session hook that says how far the training of an Estimator is: to other processes, trackers.

hook = ProgressHook(job.reporter.activity, preemption, max_steps=1000, trackers=None)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.coordination.preemption import Preemption
from tfdist.coordination.reports.activity import Activity
from tfdist.monitoring.trackers import Trackers

# Between two looks at the loss, and between two sets of values for trackers.
_LOOK_SECONDS = 1.0
_TRACK_SECONDS = 10.0


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Records the global step and the loss about once a second.

    Trackers get the loss and the steps per second about every ten seconds, and at the end.

    Args:
      activity: what this task does.
      preemption: counts the steps of this task.
      max_steps: the global step at the end; None if it is unknown.
      trackers: None in all tasks but the chief.
      clock: returns seconds, from any starting point.
    """

    def __init__(
        self,
        activity: Activity,
        preemption: Preemption,
        *,
        max_steps: int | None,
        trackers: Trackers | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity = activity
        self._preemption = preemption
        self._max_steps = max_steps
        self._trackers = trackers
        self._clock = clock
        self._looked = 0.0
        self._tracked: tuple[float, int] | None = None
        self._newest: tuple[float, int, dict[str, float]] | None = None

    def begin(self) -> None:
        self._fetched = {"step": tf.compat.v1.train.get_global_step()}
        # An Estimator adds the loss of its model function after all others.
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        if losses and losses[-1].shape.rank == 0:
            self._fetched["loss"] = losses[-1]

    def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs | None:
        if self._clock() - self._looked < _LOOK_SECONDS:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is None:
            return
        self._looked = now = self._clock()
        values = {name: float(value) for name, value in run_values.results.items()}
        step = int(values.pop("step"))
        # Other workers may make steps, too.
        resumed = max(0, step - self._preemption.steps_begun)
        self._activity.describe(resumed=resumed, goal=self._max_steps or 0, **values)
        self._newest = now, step, values
        if self._tracked is None:
            self._tracked = now, step
        elif now - self._tracked[0] >= _TRACK_SECONDS:
            self._track()

    def end(self, session: Any) -> None:
        self._track()

    def _track(self) -> None:
        if self._newest is None or self._tracked is None or self._trackers is None:
            return
        (now, step, values), (before, step_before) = self._newest, self._tracked
        if step > step_before:
            values = {**values, "steps_per_second": (step - step_before) / (now - before)}
        self._trackers.log(values, step)
        self._tracked = now, step
