"""The first weights of `model_to_estimator`, which TensorFlow writes in every task.

All tasks write them at the same time, to the same place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorflow_estimator.python.estimator import keras_lib


@functools.cache
def apply(save: Callable[..., Any]) -> None:
    """Calls `save` in place of the function that writes them.

    Args:
      save: takes that function, and its arguments: a Keras model, its custom objects, the
        configuration of the Estimator, and whether to save the objects. Returns the path.
    """
    original = keras_lib._save_first_checkpoint

    @functools.wraps(original)
    def save_first_checkpoint(*arguments: Any) -> Any:
        return save(original, *arguments)

    keras_lib._save_first_checkpoint = save_first_checkpoint
