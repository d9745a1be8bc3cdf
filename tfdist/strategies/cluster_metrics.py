"""A Keras callback that combines the metrics of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.strategies.collectives import Collectives


class ClusterMetrics(tf.keras.callbacks.Callback):
    """Replaces this rank's metrics in the logs of an epoch with the metrics over all ranks.

    The metrics' variables are sums, unless they have another aggregation. Their sum over the ranks
    counts each example once, even if the ranks have different numbers of examples.
    """

    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self._collectives = collectives
        self._training: dict[str, float] | None = None
        self._validation: dict[str, float] = {}
        self._in_epoch = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._training, self._validation, self._in_epoch = None, {}, True

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        # Evaluation resets the metrics, so read the training metrics first.
        if self._in_epoch:
            self._training = combined_results(self.model, self._collectives)

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        if self._in_epoch:
            self._validation = combined_results(self.model, self._collectives)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        found = self._training or combined_results(self.model, self._collectives)
        found |= {f"val_{name}": value for name, value in self._validation.items()}
        if logs is not None:
            # A train step of one's own may not return all metrics of its model.
            logs.update({name: value for name, value in found.items() if name in logs})
        self._in_epoch = False


def combined_results(model: tf.keras.Model, collectives: Collectives) -> dict[str, float]:
    """The metrics over all ranks; does not change each rank's own. Every rank must call it."""
    variables = keras_compat.as_tensorflow(keras_compat.metric_variables(model))
    before = [variable.value() for variable in variables]
    for variable, total in zip(
        variables, collectives.sum(_parts(variables, collectives)), strict=True
    ):
        variable.assign(total)
    # Keras 3.10 returns numbers, other versions return tensors.
    results = {
        name: _number(tf.convert_to_tensor(value).numpy())
        for name, value in model.get_metrics_result().items()
    }
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return results


def _number(result: Any) -> Any:
    """The result of a metric as Keras returns it: a number, or an array."""
    return result if result.ndim else result.item()


def _parts(variables: Iterable[tf.Variable], collectives: Collectives) -> list[tf.Tensor]:
    """What this rank adds to the state of all ranks, by the aggregation of each variable."""
    parts = []
    for variable in variables:
        value = variable.value()
        if variable.aggregation == tf.VariableAggregation.MEAN:
            value = tf.cast(value / collectives.size, value.dtype)
        elif variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            value = value if collectives.rank == 0 else tf.zeros_like(value)
        parts.append(value)
    return parts
