"""The functions of a synchronous step: gradients on a worker, one update on the ps, the metrics.

functions = Functions(strategy, synchronous, train_step, iterator_spec, packs=True)
steps, (logs, contribution) = functions.make(iterator)          # on each worker
functions.apply([*contribution, …])
functions.metric_results()                                      # after the last update
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.building import zeros
from tfdist.errors import log
from tfdist.strategies.parameter_server.steps.exchange import Exchange
from tfdist.strategies.parameter_server.steps.tracing import converting, scheduled
from tfdist.strategies.parameter_server.transfers.contributions import Recorded
from tfdist.strategies.parameter_server.transfers.packed_step import packed_transfers
from tfdist.strategies.parameter_server.transfers.recorder import Recorder


@dataclass
class Synchronous:
    """What all steps of a synchronous training share.

    Attributes:
      replicas_to_aggregate: the number of gradients per update.
      recovery_timeout: seconds to wait for the return of a lost worker.
      recorder: records the gradients of the wrapped optimizers.
      exchange: sums tensors over the workers of a step.
      model: the model in training; None if it is unknown.
    """

    replicas_to_aggregate: int
    recovery_timeout: float
    exchange: Exchange
    recorder: Recorder = field(default_factory=Recorder)
    model: Any = None


class Functions:
    """The concrete functions of a step.

    Args:
      strategy: the TensorFlow strategy.
      synchronous: what all steps share.
      step: takes an iterator and returns the logs.
      iterator_spec: the `tf.TypeSpec` of the workers' iterators.
      packs: whether the transfers of a step are packed.

    Raises:
      UsageError: the step calls no optimizer of the recorder, or calls it inside a branch, or needs
        the weights that it has updated.

    Attributes:
      gradients: takes an iterator; returns whether there was data, bool, shape []; the logs, on the
        worker; and the contribution, a list of tensors on the ps, zeros without data.
      apply: takes the contributions of an update as one flat list.
      is_joint: whether a worker waits for what others compute in the same step. Then those without
        data must say so in each step.
    """

    def __init__(
        self,
        strategy: Any,
        synchronous: Synchronous,
        step: Callable[[Any], Any],
        iterator_spec: Any,
        *,
        packs: bool,
    ) -> None:
        self._model = model = synchronous.model
        if model is None:
            log(
                "warning: training without job.callbacks: each worker changes moving statistics "
                "by itself, and a smaller batch counts as much as a full one"
            )
        with scheduled(strategy):
            found = _gradients(step, iterator_spec, synchronous, packs=packs)
            self.gradients, recorded, self._queues = found
            self.is_joint = bool(self._queues)
            contribution = self.gradients.structured_outputs[2]
            count = synchronous.replicas_to_aggregate
            self.apply = _apply(strategy, recorded, contribution, count)
            if model is not None:
                results = tf.function(model.get_metrics_result, autograph=False)
                self._results = results.get_concrete_function()

    def make(self, iterator: Any) -> tuple[int, tuple[Any, list[tf.Tensor]]]:
        """Computes gradients on the device of the caller.

        Returns:
          The number of batches that were read, 0 or 1; and the logs with the contribution.
        """
        had_data, logs, contribution = self.gradients(iterator)
        return int(had_data.numpy()), (logs, contribution)

    def metric_results(self) -> dict[str, Any]:
        """The results of the metrics that the workers' steps update."""
        if self._model is None:
            return {}
        captured = {id(tensor) for tensor in self.gradients.graph.external_captures}
        unused = {
            metric.name
            for metric in self._model.metrics
            if not all(
                id(variable.handle) in captured
                for variable in keras_compat.as_tensorflow(metric.variables)
            )
        }
        return {
            name: value.numpy() for name, value in self._results().items() if name not in unused
        }


def _gradients(
    step: Callable[[Any], Any], iterator_spec: Any, synchronous: Synchronous, *, packs: bool
) -> tuple[Any, Recorded, list[Any]]:
    found: list[Recorded] = []
    statistics = _assignable(synchronous.model)
    exchange = synchronous.exchange
    queues = exchange.begin()

    @tf.function
    def step_on(batch: Any, present: tf.Tensor) -> tuple[Any, list[tf.Tensor]]:
        exchange.present = present
        recording = synchronous.recorder.recording(statistics)
        with recording as recorded, packed_transfers() if packs else nullcontext():
            logs = step(iter([batch]))
        found.append(recorded)
        return logs, recorded.in_packs(packs=packs)

    @tf.function
    def gradients(iterator: Any) -> tuple[tf.Tensor, Any, list[tf.Tensor]]:
        batch = iterator.get_next_as_optional()
        with converting():
            traced = step_on.get_concrete_function(
                batch.element_spec, tf.TensorSpec([None], tf.bool)
            )
        specs = tf.nest.flatten(traced.structured_outputs)
        had_data = batch.has_value()
        present = exchange.who(had_data) if queues else had_data[tf.newaxis]

        def with_data(_: Any, *values: Any) -> list[Any]:
            return [False, *tf.nest.flatten(traced(batch.get_value(), present))]

        # A loop of one iteration at most: in a `tf.cond`, TensorFlow gives a lookup table no value.
        _, *values = tf.while_loop(
            lambda has_data, *_: has_data,
            with_data,
            [had_data, *zeros(specs, size=0)],
            [tf.TensorShape([]), *(spec.shape for spec in specs)],
            parallel_iterations=1,
        )
        logs, packed = tf.nest.pack_sequence_as(traced.structured_outputs, values)
        return had_data, logs, found[-1].on_ps(packed)

    concrete = gradients.get_concrete_function(iterator_spec)
    found[-1].check()
    return concrete, found[-1], queues


def _apply(strategy: Any, recorded: Recorded, contribution: Sequence[tf.Tensor], count: int) -> Any:
    size = len(contribution)

    @tf.autograph.experimental.do_not_convert
    def update(tensors: list[tf.Tensor]) -> None:
        with converting():
            recorded.apply([tensors[i * size : (i + 1) * size] for i in range(count)])

    @tf.function(autograph=False)
    def apply(tensors: list[tf.Tensor]) -> None:
        strategy.run(update, args=(tensors,))

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in contribution]
    return apply.get_concrete_function(specs * count)


def _assignable(model: Any) -> list[tf.Variable]:
    """The variables that steps may change without an optimizer: statistics, counters, averages.

    The state of random numbers, which is unsigned, is each worker's own.
    """
    if model is None:
        return []
    metrics = keras_compat.as_tensorflow(keras_compat.metric_variables(model))
    others = {id(variable) for variable in metrics}
    # Keras 2 counts the steps in the model.
    counters = [] if keras_compat.is_keras_3(model) else [model._train_counter]
    return counters + [
        each
        for each in keras_compat.model_variables(model)
        if id(each) not in others and (each.dtype.is_floating or each.dtype in (tf.int32, tf.int64))
    ]
