"""Keras 2 does not pass the gradients of all variables through one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfdist.config.role import TaskSettings
from tfdist.config.strategies.rows import InGraphOptions
from tfdist.strategies.in_graph.strategy import InGraph

pytestmark = pytest.mark.stacks("2.15")

optimizers = tf.keras.optimizers


def operations(optimizer: Any) -> list[str]:
    """The types of the operations that apply two gradients."""
    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def apply(gradient: tf.Tensor) -> None:
        optimizer.apply_gradients([(2 * gradient, variable) for variable in variables])

    graph = apply.get_concrete_function(tf.TensorSpec([1])).graph
    functions = [definition.node_def for definition in graph.as_graph_def().library.function]
    own = [operation.type for operation in graph.get_operations()]
    return own + [node.op for nodes in functions for node in nodes]


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.SGD(0.1, momentum=0.9),
        lambda: optimizers.legacy.Adam(0.1),
        lambda: tf.keras.mixed_precision.LossScaleOptimizer(optimizers.Adam(0.1)),
    ],
    ids=["sgd", "legacy", "scaled"],
)
def test_gradients_are_not_joined(make: Callable[[], Any]) -> None:
    strategy = InGraph(TaskSettings(options=InGraphOptions()))
    assert "IdentityN" in operations(make())
    assert "IdentityN" not in operations(strategy.wrap_optimizer(make()))
