"""Checks that a model can run on the parts of a batch, and that its outputs can be merged."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError

# Operations that TensorFlow calls stateful because they read something that may change.
_READS = {"Placeholder", "ReadVariableOp", "ResourceGather", "VarHandleOp"}


def check_model(model: Any, inputs: Any, *, recompute: bool = False) -> None:
    """Checks a model by tracing one call, which computes nothing.

    Args:
      model: a built `tf.keras.Model`.
      inputs: the specification of its inputs, as in `tf.data.Dataset.element_spec`.
      recompute: whether the model is called twice on each part of a batch.

    Raises:
      UsageError: an output is not a tensor whose first dimension is
        that of the batch; or a layer adds a loss while it is called. Each part of a batch would add
        that loss, and the gradient would not include it. With `recompute`, if a second call could
        have other results, or would update a variable again.
    """
    specs = tf.nest.flatten(inputs)
    outputs: list[Any] = []
    losses: list[Any] = []
    effects: list[str] = []

    @tf.function
    def trace(values: Any) -> None:
        outputs.extend(tf.nest.flatten(model(values, training=True)))
        called = set(tf.compat.v1.get_default_graph().get_operations())
        effects.extend(
            each.name for each in called if each.op_def.is_stateful and each.type not in _READS
        )
        # Keras computes the regularizers of weights only now.
        losses.extend(loss for loss in model.losses if getattr(loss, "op", None) in called)

    trace.get_concrete_function(inputs)
    batch = specs[0].shape[0] if specs[0].shape.rank else None
    for output in outputs:
        if not _has_batch(output, batch):
            described = output.shape if isinstance(output, tf.Tensor) else repr(output)
            raise UsageError(
                "model",
                received=f"{model.name}, with the output {described}",
                accepted="outputs with one row for each example, under in_graph",
                remedy="Return tensors whose first dimension is that of the batch.",
            )
    if recompute and effects:
        raise UsageError(
            "--recompute",
            received=f"{model.name}, with the stateful operation {min(effects)}",
            accepted="models without layers such as BatchNormalization, Dropout and LSTM",
            remedy="Leave it out, or choose more stages.",
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
