"""Checks that the layers of a model add no losses of their outputs.

Each part of a batch would add them, and the gradient would not include them. Losses of the weights
do not depend on a batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError


def check_losses(model: Any, inputs: Any) -> None:
    """Checks a model by tracing one call, which computes nothing.

    Args:
      model: a built `tf.keras.Model`.
      inputs: the `tf.TensorSpec` of its inputs.

    Raises:
      UsageError: a loss in `model.losses` depends on the inputs.
    """

    losses: list[Any] = []

    @tf.function
    def trace(values: Any) -> None:
        model(values, training=True)
        losses.extend(model.losses)

    graph = trace.get_concrete_function(inputs).graph
    own = [loss for loss in losses if getattr(loss, "graph", None) is graph]
    # The variables follow the arguments.
    values = graph.inputs[: len(tf.nest.flatten(inputs))]
    if _depend(own, values):
        raise UsageError(
            "model",
            received=f"{model.name}, with an activity regularizer or a call of add_loss",
            accepted="losses of the outputs and of the weights, under in_graph",
            remedy="Compute this loss from an output, or choose another strategy.",
        )


def _depend(tensors: list[tf.Tensor], sources: list[tf.Tensor]) -> bool:
    """Whether a tensor of a graph is computed from one of the sources."""
    wanted = {source.op for source in sources}
    left = [tensor.op for tensor in tensors]
    seen = set(left)
    while left:
        operation = left.pop()
        if operation in wanted:
            return True
        new = {tensor.op for tensor in operation.inputs} - seen
        seen |= new
        left += new
    return False
