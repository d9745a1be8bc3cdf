"""The Keras callbacks of a job: speed, metrics log, TensorBoard, and `training.resume`.

    model.fit(…, callbacks=job.callbacks(output_dir))

Those of this module work per epoch. The progress, the summaries, the profile and `resume` also
follow the steps, which `training.steps` reports to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError, log
from tfdist.storage import lock, output_directory
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.dynamic_tables import TableFacts
from tfdist.training.progress import Progress
from tfdist.training.resume import Resume
from tfdist.training.scalars import scalars
from tfdist.training.state import TrainingState
from tfdist.training.step_profile import StepProfile
from tfdist.training.steps import Logs, StepFollower, Steps
from tfdist.training.summaries import Summaries


def standard(
    state: TrainingState, output_dir: str, *, keep: int, save_steps: int | None
) -> list[tf.keras.callbacks.Callback]:
    """The callbacks of `Job.callbacks`, in the order that they require."""
    if state.role.is_dry_run:
        raise UsageError(
            "--dry_run",
            received="a script that calls job.callbacks",
            accepted="a script that calls job.fit, which describes its model",
            remedy="Call job.fit, which has the same callbacks.",
        )
    output = OutputDirectory(output_dir)
    progress = Progress(state, output)
    followers: list[StepFollower] = [progress]
    if steps := state.role.flags.profiled_steps:
        followers.append(StepProfile(state, output, steps))
    callbacks = [*state.strategy.callbacks(), progress, ExamplesPerSecond(state)]
    callbacks.append(TableFacts(state.reporter.activity, is_chief=state.is_chief))
    if state.is_chief:
        lock.hold(output.lock)
        output_directory.check_writable(output.checkpoints, output.logs)
        callbacks += [NonFiniteWarning(), MetricsLog(state, output)]
        followers.append(Summaries(state, output))
    # Last, so that every epoch with a checkpoint has a line in the metrics log.
    followers.append(Resume(state, output, keep=keep, save_steps=save_steps))
    return [*callbacks, Steps(state, followers), *followers[1:]]


class ExamplesPerSecond(tf.keras.callbacks.Callback):
    """Adds `examples_per_second` to an epoch's logs: training only, over the whole cluster.

    Adds nothing if the batch size of the data is unknown. A smaller last batch counts as a full
    one.

    Args:
      state: knows the number of examples per update.
      clock: returns seconds, from any starting point.
    """

    def __init__(self, state: TrainingState, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._state = state
        self._clock = clock

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._begun = self._clock(), self._state.steps
        self._ended: float | None = None

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._ended = self._ended or self._clock()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        examples = self._state.examples_per_update
        if logs is not None and examples is not None:
            begun, steps = self._begun
            seconds = (self._ended or self._clock()) - begun
            logs["examples_per_second"] = (self._state.steps - steps) * examples / seconds


class NonFiniteWarning(tf.keras.callbacks.Callback):
    """Warns once about a metric that is not finite, such as a loss that has become NaN."""

    _has_warned = False

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        wrong = [
            f"{name} is {value}" for name, value in scalars(logs).items() if not isfinite(value)
        ]
        if wrong and not self._has_warned and not self.model.stop_training:
            self._has_warned = True
            log(
                f"warning: {', '.join(wrong)} after epoch {epoch + 1}; the callback TerminateOnNaN "
                "ends a training whose loss is NaN or infinite"
            )


class MetricsLog(tf.keras.callbacks.Callback):
    """Adds a JSON line to `metrics.jsonl` after each epoch: epoch, step, time and the logs.

    Epochs count from 1, `step` is the number of updates, and `time` is in seconds since 1970. Of
    asynchronous parameter servers, `steps_by_worker` has the steps of each worker in the epoch.

    Args:
      state: counts the updates.
      output: the output directory.
    """

    def __init__(self, state: TrainingState, output: OutputDirectory) -> None:
        super().__init__()
        self._state = state
        self._output = output

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        place: dict[str, Any] = {"epoch": epoch + 1, "step": self._state.steps, "time": time.time()}
        if by_worker := self._state.strategy.cursor.steps_by_worker:
            place["steps_by_worker"] = by_worker
        output_directory.append_metrics(self._output.metrics, logs, **place)
