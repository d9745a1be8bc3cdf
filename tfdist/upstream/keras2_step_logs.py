"""Corrects the logs of a step under `MultiWorkerMirroredStrategy` with Keras 2.

    class Strategy(KeepsMetricResults, tf.distribute.MultiWorkerMirroredStrategy): …
    strategy.model = model

The result of a metric already covers all replicas. Keras 2 sums it over the workers a second time
(`reduce_per_replica` in its `training.py`), so two workers show an accuracy of 1.6 until the epoch
ends. `tests/upstream/test_keras2_step_logs.py` fails when upstream has fixed this.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class KeepsMetricResults:
    """Mixin for a `tf.distribute.Strategy` whose `reduce` does not change the results of metrics.

    It still reduces other results of a custom train step, such as a replica's loss.

    Attributes:
      model: the model in training; None before the training.
    """

    model: tf.keras.Model | None = None

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        if any(value is result for result in self._results()):
            return value
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def _results(self) -> list[Any]:
        """The results of the model's metrics in the step that is being traced."""
        metrics = self.model.metrics if self.model is not None else []
        # Keras 3 has no `_call_result`: its steps return each replica's results for a mean.
        results: list[Any] = tf.nest.flatten(
            [getattr(metric, "_call_result", None) for metric in metrics]
        )
        return [result for result in results if result is not None]
