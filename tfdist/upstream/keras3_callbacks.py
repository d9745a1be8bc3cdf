"""Makes `ModelCheckpoint` and `BackupAndRestore` of Keras 3 write in only one task.

Otherwise all tasks write the same files at the same time.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Stops these callbacks from writing in this task; they still restore.

    Raises:
      AttributeError: this Keras has no such method.
    """
    callbacks = tf.keras.callbacks
    for kind, method in (
        (callbacks.ModelCheckpoint, "_save_model"),
        (callbacks.BackupAndRestore, "_save_model"),
        # Removes the backup.
        (callbacks.BackupAndRestore, "on_train_end"),
    ):
        apply_wrapper(kind, method, _do_nothing)


def _do_nothing(*arguments: Any, **options: Any) -> None:
    pass
