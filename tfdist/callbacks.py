"""The Keras callbacks of a job: resume and checkpoints, speed, metrics log, TensorBoard.

    model.fit(…, callbacks=job.callbacks(output_dir, batch_size=job.global_batch_size(32)))

Each works by epochs, because steps of a parameter-server job are not seen one by one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdist import checkpoints
from tfdist.checkpoints import OutputDirectory

if TYPE_CHECKING:
    from tfdist.strategies.base import Job

Logs = dict[str, Any]


def standard(
    job: Job, output_dir: str, *, batch_size: int | None, keep: int
) -> list[tf.keras.callbacks.Callback]:
    """What `Job.callbacks` documents, in the order in which the callbacks need each other."""
    output = OutputDirectory(output_dir)
    callbacks = [*job.engine_callbacks()]
    if batch_size is not None:
        callbacks.append(ExamplesPerSecond(batch_size))
    if job.is_chief:
        callbacks.append(MetricsLog(output))
        callbacks.append(EpochSummaries(str(output.logs), write_graph=False))
    # Last, so that an epoch with a checkpoint is always one with a line in the metrics log.
    callbacks.append(Resume(job, output, keep=keep))
    return callbacks


class Resume(tf.keras.callbacks.Callback):
    """Goes on from the newest checkpoint, saves one after each epoch and the model at the end."""

    def __init__(self, job: Job, output: OutputDirectory, *, keep: int) -> None:
        super().__init__()
        self._job = job
        self._output = output
        self._keep = keep
        self._finished = 0
        self._has_trained = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        checkpoints.build(self.model, self._job.element_spec)
        self._checkpointer = checkpoints.Checkpointer(
            self.model,
            self._output.checkpoints,
            writes=self._job.is_chief,
            keep=self._keep,
            io_device=self._job.io_device,
        )
        epochs = self.params["epochs"]
        self._finished = self._checkpointer.restore()
        is_complete = checkpoints.is_complete(self._output, self._finished, epochs)
        # Agreed on by all tasks, because one that trains without the others waits for ever.
        start = self._job.start_equal(self.model, epochs if is_complete else self._finished)
        if start >= epochs:
            self._say(f"training is complete after {self._finished} epochs")
        elif start:
            self._say(f"going on after epoch {start} of {epochs}")
        if start < epochs and self._job.is_chief:
            self._output.done.unlink(missing_ok=True)
        self._job.skip_epochs(start)
        # Where Keras's own BackupAndRestore tells `fit` the epoch to start with.
        self.model._training_state = _StartingPoint(start)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._finished = epoch + 1
        self._has_trained = True
        if self._job.saves:
            self._checkpointer.save(self._finished)

    def on_train_end(self, logs: Logs | None = None) -> None:
        epochs = self.params["epochs"]
        self._checkpointer.close()
        self.model._training_state = None
        if self._job.saves and (self._has_trained or not self._output.saved_model.exists()):
            checkpoints.export(
                self.model,
                self._output,
                writes=self._job.is_chief,
                io_device=self._job.io_device,
            )
        if not self._has_trained or self._finished >= epochs or self.model.stop_training:
            if self._job.is_chief:
                checkpoints.mark_done(self._output, self._finished, epochs)
        else:
            self._say(f"fit ended early, after epoch {self._finished} of {epochs}")

    def _say(self, text: str) -> None:
        if self._job.is_chief:
            steps = int(self.model.optimizer.iterations.numpy())
            print(f"tfdist: {text} and {steps} steps in {self._output.path}", file=sys.stderr)


class _StartingPoint:
    """What `fit` asks for the epoch and the step to start with."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return max(self._epoch, initial_epoch), 0


class ExamplesPerSecond(tf.keras.callbacks.Callback):
    """Adds `examples_per_second`, of training alone and over the cluster, to an epoch's logs.

    Args:
      batch_size: examples behind one update of the weights; a last batch that is smaller counts as
        if it were not. Updates are counted by the optimizer, which all workers of an asynchronous
        job share.
      clock: seconds, from any starting point.
    """

    def __init__(self, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._clock = clock
        self._rate: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._rate = None
        self._started = self._clock(), self._steps()

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if self._rate is None:
            self._rate = self._measured()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs is not None:
            logs["examples_per_second"] = self._rate or self._measured()

    def _measured(self) -> float:
        seconds, steps = self._started
        return (self._steps() - steps) * self._batch_size / (self._clock() - seconds)

    def _steps(self) -> int:
        return int(self.model.optimizer.iterations.numpy())


class EpochSummaries(tf.keras.callbacks.TensorBoard):
    """Keras's summaries for TensorBoard, which fail on a metric that is an array: its mean."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        super().on_epoch_end(epoch, {name: np.mean(value) for name, value in (logs or {}).items()})


class MetricsLog(tf.keras.callbacks.Callback):
    """Adds a JSON line to `metrics.jsonl` after each epoch: epoch, step, time and the logs.

    Epochs are counted from 1, `step` is the number of updates, `time` is in seconds since 1970.
    """

    def __init__(self, output: OutputDirectory, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._output = output
        self._clock = clock
        self._is_cut = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if not self._is_cut:
            checkpoints.cut_json_lines(
                self._output.metrics, lambda record: record["epoch"] <= epoch
            )
            self._is_cut = True

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        record = {
            "epoch": epoch + 1,
            "step": int(self.model.optimizer.iterations.numpy()),
            "time": self._clock(),
            **{name: checkpoints.as_json(value) for name, value in (logs or {}).items()},
        }
        checkpoints.append_json_line(self._output.metrics, record)
