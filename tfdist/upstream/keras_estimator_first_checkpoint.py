"""Lets only one task write the initial weights of `model_to_estimator`.

TensorFlow writes them in every task, at the same time and to the same path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow_estimator.python.estimator import keras_lib

from tfdist.upstream.wrapping import apply_wrapper


def apply(save: Callable[..., Any]) -> None:
    """Calls `save` instead of TensorFlow's function.

    Args:
      save: takes TensorFlow's function and its arguments (a Keras model, its custom objects, the
        Estimator's configuration, and whether to save the objects); returns the path.
    """
    apply_wrapper(keras_lib, "_save_first_checkpoint", save)
