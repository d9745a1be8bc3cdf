"""The logs of a step under `MultiWorkerMirroredStrategy` with Keras 2.

    class Strategy(KeepsMetricResults, tf.distribute.MultiWorkerMirroredStrategy): …
    strategy.model = model

The result of a metric is over all replicas. Keras 2 sums it over the workers once more, so that two
of them show an accuracy of 1.6 until the epoch ends (`reduce_per_replica` in its `training.py`).
`tests/upstream/test_keras2_step_logs.py` tells when upstream has fixed it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class KeepsMetricResults:
    """For a `tf.distribute.Strategy`: leaves the results of metrics as they are.

    What else a step of the user's own returns, such as the loss of a replica's part, it reduces.

    Attributes:
      model: the one that is trained; None before.
    """

    model: tf.keras.Model | None = None

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        if any(value is result for result in self._results()):
            return value
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def _results(self) -> list[Any]:
        """What the model's metrics have returned in the step that is traced."""
        metrics = self.model.metrics if self.model is not None else []
        # Keras 3 has none: its steps return a replica's own results, and it takes the mean.
        results: list[Any] = tf.nest.flatten(
            [getattr(metric, "_call_result", None) for metric in metrics]
        )
        return [result for result in results if result is not None]
