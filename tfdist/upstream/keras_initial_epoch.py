"""Sets the epoch and the step at which `fit` starts; a callback has no public API for this.

Keras's own `BackupAndRestore` sets them in the same way.
"""

from __future__ import annotations

from typing import Any

from tfdist.compat.keras import is_keras_3


def set_start(model: Any, epoch: int, step: int) -> None:
    """Sets the start of the current `fit`; call this in `on_train_begin`.

    Args:
      model: a Keras model.
      epoch: the first epoch, from 0.
      step: the first step of this epoch. Ignored by Keras 3, which starts every epoch at step 0.
    """
    if is_keras_3(model):
        # As Keras's own BackupAndRestore does.
        model._initial_epoch = epoch
    else:
        model._training_state = _StartingPoint(epoch, step)


def forget_start(model: Any) -> None:
    """Undoes `set_start`, for the next `fit`."""
    if is_keras_3(model):
        model._initial_epoch = None
    else:
        model._training_state = None


class _StartingPoint:
    """The object that Keras 2's `fit` asks for its first epoch and step."""

    def __init__(self, epoch: int, step: int) -> None:
        self._start = epoch, step

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return max(self._start, (initial_epoch, 0))
