"""The evaluation of an Estimator: after checkpoints in the task that leads, or in an evaluator.

evaluation = Evaluation(estimator, eval_spec, max_steps=1000)
evaluation.follow()           # in the task of type evaluator
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoints import files as checkpoint_files
from tfdist.checkpoints import output_directory
from tfdist.checkpoints.files import Fingerprint
from tfdist.checkpoints.output_directory import OutputDirectory
from tfdist.coordination.preemption import Preemption
from tfdist.errors import log
from tfdist.estimator.inputs import whole


def latest_checkpoint(estimator: tf.estimator.Estimator) -> str | None:
    """An Estimator's newest checkpoint that is whole, of those that are saved; None if none is."""
    paths = reversed(checkpoint_files.saved(Path(estimator.model_dir)))
    return checkpoint_files.first_intact(paths)


def global_step(estimator: tf.estimator.Estimator) -> int:
    """The global step of an Estimator's newest checkpoint that is whole; 0 where there is none.

    From its name: models of Keras and others keep it under different keys.
    """
    return checkpoint_files.number(latest_checkpoint(estimator))


class Progress:
    """How far a training is that runs elsewhere.

    Args:
      estimator: an Estimator of the training's directory.
      max_steps: the global step that completes the training; None if it ends otherwise.
    """

    def __init__(self, estimator: tf.estimator.Estimator, max_steps: int | None) -> None:
        self._estimator = estimator
        self._max_steps = max_steps
        self._done = OutputDirectory(estimator.model_dir).done
        self._first_mark = self._mark()

    def is_complete(self) -> bool:
        """Whether the training has reached `max_steps`, or has said that it ended before."""
        mark, step = self._mark(), global_step(self._estimator)
        if self._max_steps is not None and step >= self._max_steps:
            return True
        if mark is None:
            return False
        # A mark that was there from the start may be of an earlier run, which had more to do.
        return mark != self._first_mark or (
            self._max_steps is None and json.loads(mark).get("global_step") == step
        )

    def _mark(self) -> str | None:
        try:
            return self._done.read_text()
        except FileNotFoundError:
            return None


class Evaluation:
    """Evaluates an Estimator's newest checkpoint, and exports it as the `EvalSpec` says.

    Results go to TensorBoard's `eval/`, as always, and to `eval_metrics.jsonl`, a line each.

    Args:
      estimator: the Estimator.
      eval_spec: what to evaluate; `throttle_secs` is the least time between two evaluations, and
        `start_delay_secs` an evaluator's before the first. The last one waits for neither.
      max_steps: the global step that completes the training; None if its input ends it.
      clock: seconds.
      sleep: waits that many.
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
        self._evaluated: tuple[str, Fingerprint] | None = None
        self._is_final = False
        self._next = clock()
        self.metrics: dict[str, Any] | None = None

    @property
    def is_due(self) -> bool:
        """Whether another evaluation may begin, for the time that has passed."""
        return self._clock() >= self._next

    def newest(self, *, final: bool) -> None:
        """Evaluates and exports the newest checkpoint, unless that is done already."""
        path = latest_checkpoint(self._estimator)
        if path is not None:
            self._use(path, final)

    def _use(self, path: str, final: bool) -> None:
        found = path, checkpoint_files.fingerprint(path)
        if found == self._evaluated and (self._is_final or not final):
            return
        if found != self._evaluated:
            self._evaluate(path)
            self._evaluated = found
        self._is_final = final
        for exporter in self._spec.exporters:
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=self.metrics,
                is_the_final_export=final,
            )

    def _use_if_there(self, path: str, final: bool) -> bool:
        """Whether the checkpoint was there to the end: the training removes all but the newest."""
        try:
            self._use(path, final)
        except (tf.errors.NotFoundError, ValueError):
            # TensorFlow raises both for a missing checkpoint, and for much else that does not pass.
            if checkpoint_files.damage(path) is None:
                raise
            return False
        return True

    def _evaluate(self, path: str) -> None:
        begin = self._clock()
        self.metrics = self._estimator.evaluate(
            whole(self._spec.input_fn),
            steps=self._spec.steps,
            hooks=self._spec.hooks,
            checkpoint_path=path,
            name=self._spec.name,
        )
        self._next = begin + (self._spec.throttle_secs or 0)
        self._record(self.metrics)

    def follow(self) -> None:
        """Evaluates the checkpoints of a training that runs elsewhere, until it is complete.

        A damaged one is passed over with a warning.

        Raises:
          UsageError: the output directory cannot be written.
          OutputError: the results could not be written.
        """
        output_directory.check_writable(self._output.path)
        output_directory.remove_leftovers(self._output.path, of_evaluation=True)
        log(f"evaluating the checkpoints in {self._output.path}")
        self._next = self._clock() + (self._spec.start_delay_secs or 0)
        progress = Progress(self._estimator, self._max_steps)
        while True:
            # Before the checkpoints, so that the last one is there when training is complete.
            is_last = progress.is_complete()
            if is_last or self.is_due:
                path = latest_checkpoint(self._estimator)
                was_there = path is None or self._use_if_there(path, is_last)
                if is_last and was_there:
                    return
            self._sleep(1.0)

    def _record(self, metrics: Mapping[str, Any]) -> None:
        step = int(metrics["global_step"])
        values = {
            name: value
            for name, value in metrics.items()
            # Metrics may be serialized summaries, too, which are for TensorBoard alone.
            if name != "global_step" and np.asarray(value).dtype.kind in "biuf"
        }
        record = {name: output_directory.as_json(value) for name, value in values.items()}
        # A resumed job evaluates later steps again.
        output_directory.cut_json_lines(
            self._output.eval_metrics, lambda line: bool(line["global_step"] < step)
        )
        output_directory.append_json_line(
            self._output.eval_metrics, {"global_step": step, **record}
        )
        results = ", ".join(f"{name} {np.mean(value):.4f}" for name, value in values.items())
        print(f"step {step}: {results}", flush=True)


class EvaluationListener(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates after checkpoints, in the task that saves them, unless it is about to leave."""

    def __init__(self, evaluation: Evaluation, preemption: Preemption) -> None:
        self._evaluation = evaluation
        self._preemption = preemption

    def begin(self) -> None:
        self._is_first = True

    def after_save(self, session: Any, global_step_value: int) -> None:
        # The first is of a model that this job has not trained yet.
        stays = not self._preemption.is_preempted
        if stays and not self._is_first and self._evaluation.is_due:
            self._evaluation.newest(final=False)
        self._is_first = False
