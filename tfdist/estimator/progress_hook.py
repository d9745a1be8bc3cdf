"""The session hook that says how far the training of an Estimator is.

    hook = ProgressHook(activity, preemption, max_steps=1000, add_line=add_line)

Other processes read it from memory (`tfdist run`, `status`), and from the metrics log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import tensorflow as tf

from tfdist.coordination.liveness.activity import Activity
from tfdist.coordination.preemption import Preemption

# Between two looks at the loss.
_LOOK_SECONDS = 1.0


@dataclass(eq=False)
class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Records the global step and the loss about once a second.

    Args:
      activity: what this task does.
      preemption: counts the steps of this task.
      max_steps: the global step at the end; None if it is unknown.
      add_line: takes a global step, and the loss and the steps per second until then, by name; None
        in other tasks than the chief.
      every_n_steps: global steps between two lines; there is also one at the end.
      clock: returns seconds, from any starting point.
    """

    activity: Activity
    preemption: Preemption
    _: KW_ONLY
    max_steps: int | None
    add_line: Callable[[int, dict[str, float]], None] | None
    every_n_steps: int = 100
    clock: Callable[[], float] = time.monotonic
    _looked: float = 0.0
    # The time and the global step of the last line, or of the first look.
    _logged: tuple[float, int] | None = None

    def begin(self) -> None:
        self._fetched = {"step": tf.compat.v1.train.get_global_step()}
        # An Estimator adds the loss of its model function after all others.
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        if losses and losses[-1].shape.rank == 0:
            self._fetched["loss"] = losses[-1]

    def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs | None:
        if self.clock() - self._looked < _LOOK_SECONDS:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is None:
            return
        self._looked = now = self.clock()
        values = {name: float(value) for name, value in run_values.results.items()}
        step = int(values.pop("step"))
        # Other workers may make steps, too.
        resumed = max(0, step - self.preemption.steps_begun)
        self.activity.describe(resumed=resumed, goal=self.max_steps or 0, **values)
        self._values = values
        if self._logged is None:
            # The first step has traced and placed the graph.
            self._logged = now, step
        elif step - self._logged[1] >= self.every_n_steps:
            self._write_line(now, step)

    def end(self, session: Any) -> None:
        self._write_line(self.clock(), int(session.run(self._fetched["step"])))

    def _write_line(self, now: float, step: int) -> None:
        if self.add_line is None or self._logged is None or step == self._logged[1]:
            return
        before, step_before = self._logged
        speed = (step - step_before) / (now - before)
        self.add_line(step, {**self._values, "steps_per_second": speed})
        self._logged = now, step
