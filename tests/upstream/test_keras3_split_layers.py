"""What `keras3_split_layers` assumes about the layers of Keras 3."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist  # noqa: F401

pytestmark = pytest.mark.stacks("2.21")


def test_the_layers_of_keras_3_add_their_large_weight_by_name() -> None:
    table, dense = tf.keras.layers.Embedding(4, 2), tf.keras.layers.Dense(3)
    added: list[str] = []

    def recording(layer: tf.keras.layers.Layer) -> None:
        own = layer.add_weight

        def add_weight(**kwargs: object) -> object:
            added.append(str(kwargs["name"]))
            return own(**kwargs)

        object.__setattr__(layer, "add_weight", add_weight)

    recording(table)
    recording(dense)
    table.build()
    dense.build((None, 2))
    assert added == ["embeddings", "kernel", "bias"]
    assert isinstance(table.embeddings._value, tf.Variable)
    # Nor does Keras 3 split variables itself.
    assert not [name for name in dir(tf.keras.distribution) if "parameter" in name.lower()]
