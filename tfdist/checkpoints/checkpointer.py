"""The checkpoints of a Keras training, and the mark that it is complete.

    checkpointer = Checkpointer(model, output.checkpoints, writes=job.is_chief)
    finished = checkpointer.restore()    # epochs
    checkpointer.save(Position(finished + 1), number=300)

A checkpoint is numbered by the updates of the weights that are in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.checkpoints import files as checkpoint_files
from tfdist.checkpoints.output_directory import (
    OutputDirectory,
    remove_leftovers,
    write_text,
    writing,
)
from tfdist.compat import keras as keras_compat
from tfdist.data.position import Position
from tfdist.errors import OutputError

_PREFIX = "ckpt"


class _Progress(tf.train.experimental.PythonState):
    """A `Position` as part of a checkpoint."""

    position = Position()

    def serialize(self) -> str:
        return self.position.to_json()

    def deserialize(self, string_value: bytes) -> None:
        self.position = Position.from_json(string_value)


class Checkpointer:
    """Saves and restores a model, its optimizer and where the training stands.

    Args:
      model: a `tf.keras.Model`, with its optimizer where it is compiled.
      directory: where the checkpoints are.
      writes: whether this task writes there; another one only restores.
      keep: how many checkpoints are kept; None for all.
      io_device: the device whose machine reads and writes; None for each variable's own.
      state: what else is saved, by name.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        directory: Path,
        *,
        writes: bool = False,
        keep: int | None = None,
        io_device: str | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._progress = _Progress()
        # Keras 3 lets checkpoints find neither the layers in a list of a model's own class nor the
        # state of seeds. What they find is not saved twice.
        own = keras_compat.as_tensorflow(model.variables) if keras_compat.is_keras_3(model) else []
        self._checkpoint = tf.train.Checkpoint(
            model=model,
            progress=self._progress,
            **({"variables": own} if own else {}),
            **(state or {}),
        )
        # Made now, by all tasks: a strategy lets them agree on the first value of each variable. So
        # none looks for checkpoints before the chief is here, too, and has none left to write.
        _ = self._checkpoint.save_counter
        self._directory = directory
        self._writes = writes
        self._keep = keep
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._manager: tf.train.CheckpointManager | None = None

    def restore(self, path: str | None = None) -> int:
        """Restores `path`, by default the newest checkpoint that is whole; returns its epochs.

        Returns 0, and leaves everything as it is, where there is none. The task that writes names
        those that are passed over, and puts the directory's state right.

        Raises:
          OutputError: there are checkpoints, and none is whole.
        """
        if path is None:
            path = checkpoint_files.newest_intact(self._directory, _PREFIX, warn=self._writes)
            if self._writes:
                checkpoint_files.repair_state(self._directory, _PREFIX, path)
        if path is None:
            return 0
        self._checkpoint.restore(path, options=self._options).expect_partial()
        return self.position.epoch

    @property
    def position(self) -> Position:
        """Where the training stood whose checkpoint was restored or saved last."""
        return self._progress.position

    def save(self, position: Position, number: int) -> None:
        """Saves the state at `position`, as the checkpoint of that number.

        Raises:
          OutputError: it could not be written; the checkpoints before it are as they were.
        """
        if self._manager is None:
            self._manager = tf.train.CheckpointManager(
                self._checkpoint,
                str(self._directory),
                max_to_keep=self._keep,
                checkpoint_name=_PREFIX,
            )
        self._progress.position = position
        path = self._directory / f"{_PREFIX}-{number}"
        try:
            with writing(path), quiet_tensorflow():
                self._manager.save(checkpoint_number=number, options=self._options)
        except OutputError:
            checkpoint_files.discard(str(path))
            remove_leftovers(path.parent)
            raise


def mark_done(output: OutputDirectory, finished: int, epochs: int) -> None:
    """Says that a training that was to run for `epochs` is complete after `finished` of them."""
    # Each mark differs from the one before, so that an evaluator can tell a new one.
    record = {"finished": finished, "epochs": epochs, "run": os.urandom(8).hex()}
    write_text(output.done, json.dumps(record) + "\n")


def is_complete(output: OutputDirectory, finished: int, epochs: int) -> bool:
    """Whether a training of `epochs`, of which a checkpoint has `finished`, has nothing left to do.

    It may have been stopped early; the mark says so, if it is of that checkpoint.
    """
    if finished >= epochs:
        return True
    mark = read_marker(output)
    return bool(mark and finished and mark["finished"] == finished and mark["epochs"] >= epochs)


def read_marker(output: OutputDirectory) -> dict[str, Any] | None:
    """What `done.json` says; None where it is not there or damaged."""
    try:
        mark: dict[str, Any] = json.loads(output.done.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        checkpoint_files.warn_once(output.done, f"is damaged ({error})")
        return None
    return mark


def build(model: tf.keras.Model, element_spec: Any) -> None:
    """Makes the model's and the optimizer's variables now, where Keras would at the first step.

    Args:
      model: the compiled model.
      element_spec: what it is to be trained on, as a `tf.data.Dataset` says it; None if unknown.
    """
    inputs, _, _ = tf.keras.utils.unpack_x_y_sample_weight(element_spec)
    specs = tf.nest.flatten(inputs)
    if not model.built and all(isinstance(spec, tf.TensorSpec) and spec.shape for spec in specs):

        def example(spec: tf.TensorSpec) -> tf.Tensor:
            return tf.zeros([size or 1 for size in spec.shape], spec.dtype)

        model(tf.nest.map_structure(example, inputs))
    # Keras 3 has built it under a strategy, and would build one that scales the loss once more.
    is_built = keras_compat.is_keras_3(model) and getattr(model.optimizer, "built", True)
    if model.built and not is_built and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Keeps back TensorFlow's advice on how its own saving traces functions."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
