"""Evaluates an Estimator's checkpoints, in the chief or in a separate evaluator.

evaluation = Evaluation(estimator, eval_spec, max_steps=1000)
evaluation.follow()           # in the task of type evaluator
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.coordination.liveness import activity
from tfdist.coordination.preemption import Preemption
from tfdist.estimator.input_functions import unsharded
from tfdist.storage import files as checkpoint_files
from tfdist.storage.checkpointer import read_marker
from tfdist.storage.files import Fingerprint
from tfdist.storage.output_directory import OutputDirectory
from tfdist.storage.training_watch import TrainingWatch
from tfdist.training.records import evaluations

_STEP = "global_step"


def global_step(estimator: tf.estimator.Estimator) -> int:
    """The global step of an Estimator's newest intact checkpoint; 0 if there is none.

    Reads it from the checkpoint's name, because Keras models store it under a different key.
    """
    return checkpoint_files.number(checkpoint_files.newest_saved(Path(estimator.model_dir)))


class Progress:
    """Detects the end of a training in other tasks.

    Args:
      estimator: an Estimator with the training's `model_dir`.
      max_steps: the global step that completes the training; None if its input ends it.
    """

    def __init__(self, estimator: tf.estimator.Estimator, max_steps: int | None) -> None:
        self._estimator = estimator
        self._max_steps = max_steps
        self._output = OutputDirectory(estimator.model_dir)
        self._first_marker = read_marker(self._output, _STEP)

    def is_complete(self) -> bool:
        """Whether the training has reached `max_steps`, or has written a completion marker."""
        marker, step = read_marker(self._output, _STEP), global_step(self._estimator)
        if self._max_steps is not None and step >= self._max_steps:
            return True
        if marker is None:
            return False
        # A marker that existed at the start may be from an earlier run with fewer steps.
        return marker != self._first_marker or (self._max_steps is None and marker[_STEP] == step)


class Evaluation:
    """Evaluates an Estimator's newest checkpoint, and runs the exporters of the `EvalSpec`.

    Writes the results to `eval/` for TensorBoard, and to `eval_metrics.jsonl`, one line each.

    Args:
      estimator: the Estimator.
      eval_spec: the evaluation. `throttle_secs` is the minimum time between two evaluations, and
        `start_delay_secs` an evaluator's delay before the first. The last evaluation ignores both.
      max_steps: the global step that completes the training; None if its input ends it.
      clock: returns seconds.
      sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        estimator: tf.estimator.Estimator,
        eval_spec: tf.estimator.EvalSpec,
        max_steps: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._max_steps = max_steps
        self._clock = clock
        self._sleep = sleep
        self._output = OutputDirectory(estimator.model_dir)
        self._activity: activity.Activity = estimator.config.job.reporter.activity
        self._evaluated: tuple[str, Fingerprint] | None = None
        self._is_final = False
        self._next = clock()
        self.metrics: dict[str, Any] | None = None

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed for another evaluation."""
        return self._clock() >= self._next

    def newest(self, *, final: bool) -> bool:
        """Evaluates and exports the newest checkpoint, unless this is already done.

        Returns:
          False if the training has removed the checkpoint meanwhile.
        """
        path = checkpoint_files.newest_saved(self._output.path)
        if path is None:
            return True
        try:
            self._evaluate_and_export(path, final)
        except (tf.errors.NotFoundError, ValueError):
            # TensorFlow raises both for a missing checkpoint, but also for other errors.
            if checkpoint_files.damage(path) is None:
                raise
            return False
        return True

    def _evaluate_and_export(self, path: str, final: bool) -> None:
        checkpoint = path, checkpoint_files.fingerprint(path)
        if checkpoint == self._evaluated and (self._is_final or not final):
            return
        if checkpoint != self._evaluated:
            self._evaluate(path)
            self._evaluated = checkpoint
        self._is_final = final
        for exporter in self._spec.exporters:
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=self.metrics,
                is_the_final_export=final,
            )

    def _evaluate(self, path: str) -> None:
        begin = self._clock()
        with self._activity.doing(activity.EVALUATING):
            self.metrics = metrics = self._estimator.evaluate(
                unsharded(self._spec.input_fn),
                steps=self._spec.steps,
                hooks=self._spec.hooks,
                checkpoint_path=path,
                name=self._spec.name,
            )
        self._next = begin + (self._spec.throttle_secs or 0)
        values = {
            name: value
            for name, value in metrics.items()
            # A metric can also be a serialized summary, which is only for TensorBoard.
            if name != _STEP and np.asarray(value).dtype.kind in "biuf"
        }
        evaluations.record(self._output, values, global_step=int(metrics[_STEP]))

    def follow(self, startup_timeout: float) -> None:
        """Evaluates the checkpoints of a training in other tasks, until it is complete.

        Skips a damaged checkpoint with a warning.

        Args:
          startup_timeout: seconds without a chief after which this gives up.

        Raises:
          UsageError: the output directory cannot be written.
          OutputError: the evaluator of another job writes there, the results could not be written,
            or no chief trains there.
        """
        evaluations.begin(self._output, self._activity, self._output.path)
        self._next = self._clock() + (self._spec.start_delay_secs or 0)
        progress = Progress(self._estimator, self._max_steps)
        watch = TrainingWatch(self._output, startup_timeout, self._sleep)
        while True:
            # Check this first: if training is complete, the last checkpoint exists.
            is_last = progress.is_complete()
            if (is_last or self.is_due) and self.newest(final=is_last) and is_last:
                return
            watch.wait()


class EvaluationListener(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates after checkpoints, in the task that saves them, unless it is preempted."""

    def __init__(self, evaluation: Evaluation, preemption: Preemption) -> None:
        self._evaluation = evaluation
        self._preemption = preemption

    def begin(self) -> None:
        self._is_first = True

    def after_save(self, session: Any, global_step_value: int) -> None:
        # The session saves a first checkpoint before any training.
        continues = not self._preemption.is_preempted
        if continues and not self._is_first and self._evaluation.is_due:
            self._evaluation.newest(final=False)
        self._is_first = False
