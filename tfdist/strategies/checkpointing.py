"""How the state of all tasks becomes one checkpoint, and how all tasks start from one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.data.position import Position


class Checkpointing:
    """The default: nothing to combine, because one task has the state or all have the same.

    A strategy whose tasks have different states provides a subclass.

    Attributes:
      io_device: the device whose machine reads and writes checkpoints; None for that of each
        variable.
      all_save: whether every task that trains must take part in saving; else the chief saves alone.
    """

    io_device: str | None = None
    all_save: bool = False

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        """What a checkpoint contains beside the built model and its optimizer, by name."""
        return {}

    def broadcast(self, model: tf.keras.Model, position: Position) -> Position:
        """Makes every task start from the same state; collective, before the first epoch.

        Args:
          model: the model, as this task has restored it.
          position: where to start, as this task has read it.

        Returns:
          Where to start, the same in every task.

        Raises:
          RuntimeError: the tasks found different checkpoints, so they do not share a directory.
        """
        return position

    def synchronize(self) -> None:
        """Makes the weights of all tasks equal before a checkpoint is saved; collective."""

    def save_scope(self, model: tf.keras.Model) -> AbstractContextManager[None]:
        """The scope within which a checkpoint, or the exported model, is written.

        Collective over the tasks that save. The variables must not change within it.
        """
        return nullcontext()

    def wait_for_chief(self) -> None:
        """Returns when the chief has finished saving; collective.

        Otherwise workers exit first, and the engine reports their exit as a failure of the chief.
        """
