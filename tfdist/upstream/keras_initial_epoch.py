"""The epoch and the step that `fit` starts with, which a callback cannot set with public API.

Keras's own `BackupAndRestore` sets them in the same way.
"""

from __future__ import annotations

from typing import Any

from tfdist.compat.keras import is_keras_3


def set_start(model: Any, epoch: int, step: int) -> None:
    """Lets the `fit` that has just begun start with this epoch.

    Args:
      model: a Keras model, in `on_train_begin`.
      epoch: from 0.
      step: the first of this epoch. Keras 3 begins all epochs with step 0: what it is to read over
        are steps of its own.
    """
    if is_keras_3(model):
        # As its own BackupAndRestore does.
        model._initial_epoch = epoch
    else:
        model._training_state = _StartingPoint(epoch, step)


def forget_start(model: Any) -> None:
    """Takes `set_start` back, for the next `fit`."""
    if is_keras_3(model):
        model._initial_epoch = None
    else:
        model._training_state = None


class _StartingPoint:
    """What `fit` of Keras 2 asks for the epoch and the step to start with."""

    def __init__(self, epoch: int, step: int) -> None:
        self._start = epoch, step

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return max(self._start, (initial_epoch, 0))
