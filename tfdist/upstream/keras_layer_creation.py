"""Calls a function for each Keras layer that is created in a block.

    with after_creation(lambda layer: …):
        model.add(tf.keras.layers.Dense(10))

Keras has no hook for the creation of a layer, so the constructor of the base class is replaced
while the block runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import replaced


@contextmanager
def after_creation(call: Callable[[Any], None]) -> Iterator[None]:
    """Calls `call` with each layer that is created in this block, after its constructor."""
    create = tf.keras.layers.Layer.__init__

    def create_and_call(layer: Any, *args: Any, **kwargs: Any) -> None:
        create(layer, *args, **kwargs)
        call(layer)

    with replaced(tf.keras.layers.Layer, "__init__", create_and_call):
        yield
