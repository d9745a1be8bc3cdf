"""The Keras callback that writes metrics for TensorBoard, and sends them to trackers."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.config.role import TaskRole
from tfdist.process import packages
from tfdist.training.records.tensorboard import TensorBoardRun
from tfdist.training.records.trackers import Trackers
from tfdist.training.scalars import scalars
from tfdist.training.steps import Logs, StepFollower

# Between two writes within an epoch; the first write shows early that the training has begun.
_SECONDS = 10.0
_VALIDATION = "val_"


class Summaries(StepFollower):
    """Writes the TensorBoard runs `train` and `validation`.

    `epoch_…` has the metrics of each epoch, over the number of the epoch from 1, as the metrics log
    and the plot. `step_…` has them about every ten seconds within an epoch, with the
    examples per second and the seconds per step, over the number of updates, where Keras sees the
    steps.

    The trackers of `--tracker` get the same values over the number of updates, with the names of
    the metrics log for those of an epoch.
    """

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._train = TensorBoardRun(self._output.logs / "train")
        self._validation = TensorBoardRun(self._output.logs / "validation")
        self._train.text("job", facts_of(self._state.role))
        self._train.graph(self.model)
        trackers = self._state.role.flags.trackers
        self._trackers = Trackers(trackers, self._output, facts_of(self._state.role))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        found = scalars(logs)
        own = {name: value for name, value in found.items() if not name.startswith(_VALIDATION)}
        validated = {
            f"epoch_{name.removeprefix(_VALIDATION)}": value
            for name, value in found.items()
            if name.startswith(_VALIDATION)
        }
        measured = self._learning_rate() | self._state.strategy.cursor.measured
        own |= measured
        self._trackers.log({"epoch": epoch + 1, **found, **measured}, self._state.steps)
        self._train.scalars({f"epoch_{name}": value for name, value in own.items()}, epoch + 1)
        self._validation.scalars(validated, epoch + 1)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._train.close()
        self._validation.close()
        self._trackers.finish()

    def _learning_rate(self) -> dict[str, float]:
        optimizer: Any = getattr(self.model, "optimizer", None)
        rate = getattr(optimizer, "learning_rate", None)
        if rate is None:
            return {}
        if callable(rate):  # A schedule of Keras 2.
            rate = rate(optimizer.iterations)
        (value,) = keras_compat.as_tensorflow([rate])
        return {"learning_rate": float(tf.convert_to_tensor(value).numpy())}

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._last = time.monotonic(), self._state.steps
        self._logs: Logs | None = None

    def before_steps(self, batch: int) -> None:
        now, steps = time.monotonic(), self._state.steps
        seconds, made = now - self._last[0], steps - self._last[1]
        if seconds < _SECONDS or not made:
            return
        speed = {"seconds_per_step": seconds / made}
        if examples := self._state.examples_per_update:
            speed["examples_per_second"] = examples * made / seconds
        found = {**scalars(self._logs), **self._learning_rate(), **speed}
        values = {f"step_{name}": value for name, value in found.items()}
        self._train.scalars(values, steps)
        self._trackers.log(values, steps)
        self._last = now, steps

    def after_steps(self, batch: int, logs: Logs | None) -> None:
        # The callback that counts the steps is the last one.
        self._logs = logs


def facts_of(role: TaskRole) -> dict[str, Any]:
    """Describes a job for later readers, as a JSON object.

    The addresses are those of the tasks, and the flags those that are not at their defaults.
    """
    cluster = role.cluster
    flags = {
        name: value
        for options in (role.flags, role.job_options)
        for name, defined in options.defined().items()
        if (value := getattr(options, name)) != defined.default
    }
    return {
        "strategy": role.own_spec.name,
        "tasks": {str(task): cluster.address(task) for task in cluster.tasks()},
        "flags": flags,
        "command": shlex.join(sys.argv),
        "versions": packages.description(),
    }
