"""Sets the epoch and the step at which `fit` starts; a callback has no public API for this.

Keras's own `BackupAndRestore` sets them in the same way.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tfdist.compat.keras import is_keras_3


def set_start(model: Any, start: tuple[int, int] | None) -> None:
    """Sets the start of the current `fit`; call this in `on_train_begin`.

    Args:
      model: a Keras model.
      start: the first epoch, from 0, and the first step of this epoch, which Keras 3 ignores: it
        starts every epoch at step 0. None for the start that `fit` chooses itself.
    """
    if is_keras_3(model):
        model._initial_epoch = start[0] if start else None
        return

    def first(steps_per_epoch: int | None, epoch: int, mode: Any) -> tuple[int, int]:
        return max(start or (0, 0), (epoch, 0))

    # The object that Keras 2's `fit` asks for its first epoch and step.
    state = SimpleNamespace(maybe_load_initial_counters_from_ckpt=first)
    model._training_state = state if start else None
