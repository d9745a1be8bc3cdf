"""The seconds of layers, for `--balance=time`."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies.in_graph.stage_times import seconds_of
from tfdist.strategies.in_graph.stages import stages_of

pytestmark = pytest.mark.stacks("2.15", "newest")

layers = tf.keras.layers


def measure(model: Any, inputs: tf.TensorSpec) -> dict[str, float]:
    cost_of = seconds_of(model, inputs, model.layers)
    return {layer.name: cost_of(layer) for layer in model.layers}


def test_the_stages_follow_the_time_and_not_the_parameters() -> None:
    model = tf.keras.Sequential(
        [
            tf.keras.Input([128, 128, 3]),
            # Few parameters, and most of the work.
            layers.Conv2D(32, 5, name="slow"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(600, name="large"),
            layers.Dense(600, name="last"),
        ]
    )
    inputs = tf.TensorSpec([None, 128, 128, 3])
    names = [[layer.name for layer in stage.layers] for stage in stages_of(model, 2)]
    assert names == [["slow", "pool", "large"], ["last"]]
    stages = stages_of(model, 2, lambda own: seconds_of(model, inputs, own))
    names = [[layer.name for layer in stage.layers] for stage in stages]
    assert names == [["slow", "pool"], ["large", "last"]]
    # The layers have their own methods again.
    assert not any("call" in vars(layer) for layer in model.layers)


def test_layers_of_16_bits_are_measured() -> None:
    model = tf.keras.Sequential(
        [tf.keras.Input([8]), layers.Dense(8, name="dense", dtype="mixed_bfloat16")]
    )
    assert measure(model, tf.TensorSpec([None, 8]))["dense"] > 0


def test_a_layer_without_floats_is_measured() -> None:
    model = tf.keras.Sequential(
        [tf.keras.Input([8]), layers.Rescaling(2, name="floats"), layers.Activation(as_integers)]
    )
    assert all(seconds > 0 for seconds in measure(model, tf.TensorSpec([None, 8])).values())


def as_integers(values: Any) -> Any:
    return tf.cast(values, tf.int32)


def test_a_layer_that_is_not_called_takes_no_time() -> None:
    model = tf.keras.Sequential([tf.keras.Input([8]), layers.Dense(8)])
    unused = layers.Dense(8)
    assert seconds_of(model, tf.TensorSpec([None, 8]), [unused])(unused) == 0.0
