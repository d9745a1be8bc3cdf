"""A model is refused if the results of the parts of a batch cannot be merged."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfdist.config.role import TaskSettings
from tfdist.config.strategies.rows import InGraphOptions
from tfdist.data.feed import Feed
from tfdist.errors import UsageError
from tfdist.strategies.in_graph.model_check import check_model
from tfdist.strategies.in_graph.strategy import InGraph

pytestmark = pytest.mark.stacks("2.15", "newest")


class OfOutputs(tf.keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_mean(inputs**2))
        return inputs


class OfWeights(tf.keras.layers.Dense):
    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_sum(tf.convert_to_tensor(self.kernel) ** 2))
        return super().call(inputs)


class Own(tf.keras.Model):
    """Returns what a function makes of its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def check(*own: Any) -> None:
    model = tf.keras.Sequential([tf.keras.Input([4]), *own, tf.keras.layers.Dense(1)])
    check_model(model, tf.TensorSpec([None, 4]))


def test_losses_of_the_weights_are_accepted() -> None:
    check(tf.keras.layers.Dense(4, kernel_regularizer="l2", bias_regularizer="l1"))


@pytest.mark.parametrize(
    "layer",
    [lambda: tf.keras.layers.Dense(4, activity_regularizer="l2"), OfOutputs, lambda: OfWeights(4)],
    ids=["activity_regularizer", "add_loss of outputs", "add_loss of weights"],
)
def test_losses_of_a_call_are_refused(layer: Any) -> None:
    with pytest.raises(UsageError, match="an activity regularizer or a call of add_loss"):
        check(layer())


@pytest.mark.parametrize(
    ("function", "output"),
    [
        (lambda x: tf.matmul(x, x, transpose_a=True), r"\(4, 4\)"),
        (lambda x: (x, tf.reduce_mean(x)), r"\(\)"),
        (lambda x: {"a": x, "b": None}, "None"),
    ],
)
def test_an_output_without_a_row_for_each_example_is_refused(function: Any, output: str) -> None:
    with pytest.raises(UsageError, match=f"with the output {output}'; accepted"):
        check_model(Own(function), tf.TensorSpec([None, 4]))


def test_outputs_of_each_example_are_accepted() -> None:
    check_model(Own(lambda x: (x, {"sum": tf.reduce_sum(x, axis=1)})), tf.TensorSpec([None, 4]))
    check_model(Own(lambda x: tf.reshape(x, [-1])), tf.TensorSpec([8, 1]))


def test_ragged_data_are_refused() -> None:
    def data() -> tf.data.Dataset:
        return tf.data.Dataset.range(3).map(tf.range).ragged_batch(2)

    strategy = InGraph(TaskSettings(options=InGraphOptions()))
    with pytest.raises(UsageError, match="data: received 'RaggedTensor'; accepted: dense tensors"):
        strategy.distribute(Feed(data, strategy.topology.input_context, trains=True))


@pytest.mark.parametrize(
    "make", [lambda: tf.keras.layers.Dropout(0.5), tf.keras.layers.BatchNormalization]
)
def test_a_layer_with_a_state_is_refused_only_if_it_is_computed_again(make: Any) -> None:
    # Made here: a model in a v1 graph, of another test, makes layers before it useless.
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(4), make()])
    inputs = tf.TensorSpec([None, 4])
    check_model(model, inputs)
    with pytest.raises(UsageError, match=r"--recompute: received .* with the stateful operation"):
        check_model(model, inputs, recompute=True)


def test_layers_without_a_state_are_computed_again() -> None:
    layers = [tf.keras.layers.Embedding(5, 4), tf.keras.layers.Flatten(), tf.keras.layers.Dense(4)]
    model = tf.keras.Sequential([tf.keras.Input([4], dtype="int32"), *layers])
    check_model(model, tf.TensorSpec([None, 4], tf.int32), recompute=True)
