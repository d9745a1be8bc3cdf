"""Conversion of an optimizer of Keras 2 to one for TF1 graphs, which has no public name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def convert(optimizer: Any) -> Any:
    """The `tf.keras.optimizers.legacy` optimizer with the same configuration.

    Raises:
      ValueError: there is none.
    """
    return tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)
