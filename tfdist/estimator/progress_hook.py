"""The session hook that says how far the training of an Estimator is.

    hook = ProgressHook(activity, preemption, max_steps=1000, log=MetricsLog(output, trackers))

Other processes read it from memory (`tfdist run`, `status`), and from the metrics log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.coordination.liveness.activity import Activity
from tfdist.coordination.preemption import Preemption
from tfdist.storage import output_directory
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.records.trackers import Trackers

# Between two looks at the loss.
_LOOK_SECONDS = 1.0


class MetricsLog:
    """Adds lines to `metrics.jsonl`, and sends the same values to the trackers.

    Args:
      output: the output directory.
      trackers: those of the job.
      resumed: the global step from which the training goes on; later lines are removed.

    Raises:
      OutputError: in all methods, if the file could not be written.
    """

    def __init__(self, output: OutputDirectory, trackers: Trackers, resumed: int) -> None:
        self._path = output.metrics
        self._trackers = trackers
        output_directory.cut_json_lines(self._path, lambda line: line["step"] <= resumed)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Adds a line.

        Args:
          step: the global step.
          values: by name.
        """
        output_directory.append_metrics(self._path, values, step=step, time=time.time())
        self._trackers.log(values, step)


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """Records the global step and the loss about once a second.

    Args:
      activity: what this task does.
      preemption: counts the steps of this task.
      max_steps: the global step at the end; None if it is unknown.
      log: the chief's, which gets the loss and the steps per second; None in other tasks.
      every_n_steps: global steps between two lines of the log; there is also one at the end.
      clock: returns seconds, from any starting point.
    """

    def __init__(
        self,
        activity: Activity,
        preemption: Preemption,
        *,
        max_steps: int | None,
        log: MetricsLog | None,
        every_n_steps: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity = activity
        self._preemption = preemption
        self._max_steps = max_steps
        self._log = log
        self._every = every_n_steps
        self._clock = clock
        self._looked = 0.0
        # Times, global steps and values of the last line, or of the first look; and of the last.
        self._logged: tuple[float, int] | None = None
        self._has_line = False
        self._seen: tuple[float, int, dict[str, float]] | None = None

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
        self._seen = now, step, values
        if self._logged is None:
            # The first step has traced and placed the graph.
            self._logged = now, step
        elif step - self._logged[1] >= self._every:
            self._add_line()

    def end(self, session: Any) -> None:
        if self._seen is not None:
            _, _, values = self._seen
            self._seen = self._clock(), int(session.run(self._fetched["step"])), values
        self._add_line()

    def _add_line(self) -> None:
        if self._seen is None or self._logged is None or self._log is None:
            return
        (now, step, values), (before, step_before) = self._seen, self._logged
        if step > step_before:
            values = {**values, "steps_per_second": (step - step_before) / (now - before)}
        elif self._has_line:
            return
        self._log.add(step, values)
        self._logged, self._has_line = (now, step), True
