"""Assigns the layers of a model to stages, for `--strategy=in_graph --stages=S`.

    model = tf.keras.Sequential()
    with tfdist.stage(0):
        model.add(tf.keras.layers.Dense(4096))
    with tfdist.stage(1):
        model.add(tf.keras.layers.Dense(10))

Without these blocks tfdist cuts the model itself. A script with them also runs under every other
strategy, and with one stage: the stages are then ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfdist.errors import UsageError

_STAGE = "_tfdist_stage"


@contextmanager
def stage(index: int) -> Iterator[None]:
    """Assigns the layers that are created in this block to a stage.

    Args:
      index: the stage, from 0.

    Raises:
      UsageError: this block is within the block of another stage.
    """
    # Imports TensorFlow.
    from tfdist.upstream.keras_layer_creation import after_creation

    def assign(layer: Any) -> None:
        if (outer := stage_of(layer)) not in (None, index):
            raise UsageError(
                "stage",
                received=f"{layer.name} in stage {outer} and in stage {index}",
                accepted="one stage for each layer",
                remedy="Close the block of one stage before that of the next one.",
            )
        vars(layer)[_STAGE] = index

    with after_creation(assign):
        yield


def stage_of(layer: Any) -> int | None:
    """The stage that a layer was assigned to; None if it was not."""
    assigned: int | None = vars(layer).get(_STAGE)
    return assigned
