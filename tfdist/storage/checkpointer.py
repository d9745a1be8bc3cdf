"""Saves and restores the checkpoints of a Keras training, and its completion marker.

    checkpointer = Checkpointer(model, output.checkpoints, writes=job.is_chief)
    finished = checkpointer.restore()    # epochs
    checkpointer.save(Position(finished + 1), number=300)
    checkpointer.wait()

The number of a checkpoint is the number of weight updates that it contains. A thread writes it,
while the training goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data.position import Position
from tfdist.errors import OutputError
from tfdist.process import excepthook
from tfdist.storage import files as checkpoint_files
from tfdist.storage import layout
from tfdist.storage.output_directory import (
    OutputDirectory,
    read_text,
    write_text,
    writing,
)
from tfdist.storage.snapshot import NotPlannable, SavePlan

# One thread writes all checkpoints of a process; Python waits for it when it exits.
_writer = ThreadPoolExecutor(1, thread_name_prefix="tfdist-checkpoints")


class _Progress(tf.train.experimental.PythonState):
    """Stores a `Position` in a checkpoint."""

    position = Position()

    def serialize(self) -> str:
        return self.position.to_json()

    def deserialize(self, string_value: bytes) -> None:
        self.position = Position.from_json(string_value)


class Checkpointer:
    """Saves and restores a model, its optimizer and the position of the training.

    Args:
      model: a `tf.keras.Model`, and its optimizer if it is compiled.
      directory: the directory of the checkpoints.
      writes: whether this task writes there; the other tasks only restore.
      keep: the number of checkpoints to keep; None for all.
      io_device: the device whose machine reads and writes; None for the device of each variable.
      state: other trackable objects to save, by name; `variables` replaces the list of the
        model's variables that a checkpoint of Keras 3 has.
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
        parts = {**_missed_by_tensorflow(model), **(state or {})}
        self._layout = layout.Layout(
            model, lambda: (state or {}).get("variables") or keras_compat.model_variables(model)
        )
        self._checkpoint = tf.train.Checkpoint(
            model=model, progress=self._progress, **{layout.NAME: self._layout}, **parts
        )
        # Create the counter now, in all tasks: a strategy synchronizes the initial value of each
        # variable. So no task looks for checkpoints while the chief may still be writing one.
        _ = self._checkpoint.save_counter
        self.directory = directory
        self._writes = writes
        self._keep = keep
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._plan: SavePlan | None = None
        self._under_way: Future[None] | None = None
        self._kept: list[str] = []
        #: The number of the checkpoint that was last restored or saved.
        self.number = 0

    def restore(self, path: str | None = None) -> int:
        """Restores a checkpoint.

        The writing task also logs the checkpoints that it skips, and repairs the directory's state.

        Args:
          path: the checkpoint; default: the newest intact one.

        Returns:
          The number of epochs in the checkpoint; 0 if there is no checkpoint, which changes
          nothing.

        Raises:
          OutputError: there are checkpoints, but none is intact.
          UsageError: the checkpoint is one of another model.
        """
        wait_for_writer()  # A `fit` that an exception has left may have been saving.
        if path is None:
            path = checkpoint_files.newest_intact(self.directory, warn=self._writes)
            if self._writes:
                checkpoint_files.repair_state(self.directory, path)
        if path is None:
            return 0
        layout.check(self._layout, path, warn=self._writes)
        self._checkpoint.restore(path, options=self._options).expect_partial()
        self.number = checkpoint_files.number(path)
        return self.position.epoch

    @property
    def position(self) -> Position:
        """The position in the checkpoint that was last restored or saved."""
        return self._progress.position

    def save(self, position: Position, number: int) -> None:
        """Saves a checkpoint: reads the state, and returns while a thread writes it.

        Waits for the save before this one. These saves are complete when this method returns: the
        first one, those of variables on other machines, whose memory may not hold them twice, and
        those of a state that only TensorFlow knows how to read, such as a table's.

        Args:
          position: the position of the training.
          number: the number in the checkpoint's name.

        Raises:
          OutputError: this checkpoint, or the one before, could not be written; earlier
            checkpoints are unchanged.
        """
        self.wait()
        self._progress.position, self.number = position, number
        path = self.directory / f"ckpt-{number}"
        if self._plan is not None and self._plan.fits(self._checkpoint):
            write = self._plan.read()
            if self._plan.is_here:
                excepthook.hooks.finish = wait_for_writer
                self._under_way = _writer.submit(self._write, path, write)
            else:
                self._write(path, write)
            return
        self._kept = checkpoint_files.saved(self.directory)
        with checkpoint_files.quiet_tensorflow():
            self._write(path, lambda name: self._checkpoint.write(name, options=self._options))
        try:
            self._plan = SavePlan(
                self._checkpoint,
                str(path),
                self._options.experimental_io_device,
                constants=[self._layout],
            )
        except NotPlannable:
            self._plan = None

    def wait(self) -> None:
        """Returns when no save is under way.

        Raises:
          OutputError: the last checkpoint could not be written.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _write(self, path: Path, write: Callable[[str], Any]) -> None:
        try:
            with writing(path):
                write(str(path))
                self._kept = checkpoint_files.add(str(path), self._kept, keep=self._keep)
        except OutputError:
            checkpoint_files.discard(str(path))
            checkpoint_files.remove_leftovers(path.parent)
            raise


def wait_for_writer() -> None:
    """Returns when no checkpoint of this process is being written."""
    _writer.submit(lambda: None).result()


def _missed_by_tensorflow(model: tf.keras.Model) -> dict[str, Any]:
    """What a checkpoint of a Keras 3 model misses; TensorFlow saves each variable only once.

    These are the layers and optimizers in a list of a subclassed model, those in a MultiOptimizer,
    and the state of seeds.
    """
    if not keras_compat.is_keras_3(model):
        return {}
    variables = keras_compat.model_variables(model)
    own, optimizers = getattr(model, "optimizer", None), keras_compat.optimizers_of(model)
    others = [each for each in optimizers if each is not own]
    for inner in map(keras_compat.inner_optimizers, optimizers):
        others += inner if len(inner) > 1 else []
    found = {"variables": variables, "other_optimizers": others}
    return {name: values for name, values in found.items() if values}


def is_complete(output: OutputDirectory, finished: int, epochs: int) -> bool:
    """Whether a training is complete.

    A training that was stopped early is complete if the completion marker belongs to its newest
    checkpoint.

    Args:
      output: the output directory.
      finished: the number of epochs in the newest checkpoint.
      epochs: the number of requested epochs.
    """
    if finished >= epochs:
        return True
    marker = training_marker(output) or {"finished": 0}
    return bool(finished and marker["finished"] == finished and marker["epochs"] >= epochs)


def mark_done(output: OutputDirectory, **facts: int) -> None:
    """Writes the completion marker of a training.

    Args:
      output: the output directory.
      facts: how far it is complete.
    """
    # Every marker is unique, so that other tasks can detect a new one.
    write_text(output.done, json.dumps({**facts, "run": os.urandom(8).hex()}) + "\n")


def training_marker(output: OutputDirectory) -> dict[str, Any] | None:
    """The content of a Keras training's completion marker; see `read_marker`."""
    return read_marker(output, "finished", "epochs")


def read_marker(output: OutputDirectory, *numbers: str) -> dict[str, Any] | None:
    """The content of the completion marker; None if it is missing or damaged.

    Args:
      output: the output directory.
      numbers: the names of the integers in it.
    """
    if not output.is_complete:
        return None
    try:
        marker: dict[str, Any] = json.loads(read_text(output.done))
        marker |= {name: int(marker[name]) for name in numbers}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        checkpoint_files.warn_once(output.done, f"is damaged ({error})")
        return None
    return marker
