"""Checks that a model can be called on the parts of a batch, and its results merged."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError


def check_model(model: Any, inputs: Any) -> None:
    """Checks a model by tracing one call, which computes nothing.

    Args:
      model: a built `tf.keras.Model`.
      inputs: the specification of its inputs, as in `tf.data.Dataset.element_spec`.

    Raises:
      UsageError: an input is not a dense tensor; an output is not a tensor whose first dimension is
        that of the batch; or a layer adds a loss while it is called. Each part of a batch would add
        that loss, and the gradient would not include it.
    """
    specs = tf.nest.flatten(inputs)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            raise UsageError(
                "dataset",
                received=f"an input of type {type(spec).__name__}",
                accepted="dense tensors as inputs, under in_graph",
                remedy="Convert it in the input function, or use another strategy.",
            )
    outputs: list[Any] = []
    losses: list[Any] = []

    @tf.function
    def trace(values: Any) -> None:
        outputs.extend(tf.nest.flatten(model(values, training=True)))
        called = set(tf.compat.v1.get_default_graph().get_operations())
        # Keras computes the regularizers of weights only now.
        losses.extend(loss for loss in model.losses if getattr(loss, "op", None) in called)

    trace.get_concrete_function(inputs)
    batch = specs[0].shape[0] if specs[0].shape.rank else None
    for output in outputs:
        if not _has_batch(output, batch):
            raise UsageError(
                "model",
                received=f"{model.name}, with the output {_described(output)}",
                accepted="outputs with one row for each example, under in_graph",
                remedy="Return tensors whose first dimension is that of the batch.",
            )
    if losses:
        raise UsageError(
            "model",
            received=f"{model.name}, with an activity regularizer or a call of add_loss",
            accepted="the loss of compile, and regularizers of weights, under in_graph",
            remedy="Return the value as an output and use it in the loss, or use another strategy.",
        )


def _has_batch(output: Any, batch: int | None) -> bool:
    if not isinstance(output, tf.Tensor):
        return False
    shape = output.shape
    return shape.rank is None or (shape.rank > 0 and shape[0] in (None, batch))


def _described(output: Any) -> str:
    return str(output.shape) if isinstance(output, tf.Tensor) else f"{output!r}"
