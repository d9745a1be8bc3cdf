"""Layers with a state of their own, and steps that XLA compiles, are refused."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.compat.checks import (
    check_is_not_compiled_by_xla,
    check_no_state_of_a_replica,
    check_no_synchronized_layer,
)
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def recurrent(*, stateful: bool) -> tf.keras.Model:
    """A model with a recurrent layer inside a model inside it."""
    shape = "batch_shape" if keras_is_3() else "batch_input_shape"
    inputs = tf.keras.layers.InputLayer(**{shape: [4, 5, 1]})
    inner = tf.keras.Sequential([inputs, tf.keras.layers.LSTM(2, stateful=stateful, name="memory")])
    return tf.keras.Sequential([inner, tf.keras.layers.Dense(1)])


def test_a_recurrent_layer_with_state_is_refused_where_replicas_share_variables() -> None:
    check_no_state_of_a_replica(recurrent(stateful=False), "parameter_server")
    with pytest.raises(UsageError, match="stateful: received 'True in layer memory'"):
        check_no_state_of_a_replica(recurrent(stateful=True), "parameter_server")


def test_a_synchronized_layer_is_refused_where_a_step_uses_one_batch() -> None:
    for is_synchronized in (False, True):
        layer = tf.keras.layers.BatchNormalization(synchronized=is_synchronized, name="norm")
        inner = tf.keras.Sequential([tf.keras.layers.Input([1]), layer])
        model = tf.keras.Sequential([inner, tf.keras.layers.Dense(1)])
        if not is_synchronized:
            check_no_synchronized_layer(model, "in_graph")
    with pytest.raises(UsageError, match="synchronized: received 'True in layer norm'"):
        check_no_synchronized_layer(model, "in_graph")


def test_a_model_that_xla_compiles_is_refused() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    check_is_not_compiled_by_xla(model, "mirrored")
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(UsageError, match=r"jit_compile: received True; .* and --jit_compile"):
        check_is_not_compiled_by_xla(model, "mirrored")
