"""Saves the state of all tasks in one checkpoint, and starts all tasks from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.data.position import Position


class Checkpointing:
    """The default, for strategies where all tasks have the same state or one task has all of it.

    Strategies whose tasks have different states provide a subclass.

    Attributes:
      all_save: whether every training task takes part in saving; otherwise only the chief does.
      io_device: the device whose machine can read and write the whole state; None for the device of
        each variable.
      owners: the devices that read and write their own variables instead, if they can.
    """

    all_save: bool = False
    io_device: str | None = None
    owners: Sequence[str] = ()

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        """What a checkpoint contains in addition to the built model and its optimizer, by name."""
        return {}

    def broadcast(self, model: tf.keras.Model, position: Position) -> Position:
        """Gives every task the same state before the first epoch. Every training task must call it.

        Args:
          model: the model, as this task has restored it.
          position: the start position, as this task has read it.

        Returns:
          The start position, the same in every task.

        Raises:
          RuntimeError: the tasks found different checkpoints, so they do not share a directory.
        """
        return position

    def synchronize(self) -> None:
        """Makes the weights of all tasks equal before a checkpoint is saved.

        Every training task must call it.
        """

    def save_scope(self, model: tf.keras.Model) -> AbstractContextManager[None]:
        """The scope for writing a checkpoint or the exported model.

        Every task that saves must enter it. The variables must not change within it.
        """
        return nullcontext()

    def finish(self, model: tf.keras.Model) -> None:
        """Prepares a model for its use after `fit`, which may be in one task only.

        Called in every training task at the end of each `fit`, after the last save.
        """

    def wait_for_chief(self) -> None:
        """Returns when the chief has finished saving. Every training task must call it.

        If workers exit first, the engine reports their exit as a failure in the chief.
        """
