"""Converts a Keras 2 optimizer to a legacy one for TF1 graphs; Keras has no public API for this."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def convert(optimizer: Any) -> Any:
    """The `tf.keras.optimizers.legacy` optimizer with the same configuration.

    Raises:
      ValueError: there is no such optimizer.
    """
    return tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)
