"""The base class of strategies where TensorFlow sums the replicas' gradients in each step."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat import checks, metric_states
from tfdist.compat import keras as keras_compat
from tfdist.compat.denominators import reduce_weighted
from tfdist.errors import UsageError
from tfdist.strategies.averaged_statistics import AveragedStatistics
from tfdist.strategies.base import OptionsT, Strategy
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.collectives import sums_of_pairs
from tfdist.strategies.equal_weights import EqualWeights
from tfdist.strategies.keras2_gradients import aggregation_of, reduce_gradients
from tfdist.strategies.replicas import collective_sparse_gradients, sync_on_read
from tfdist.strategies.replicas.keras3_statistics import keep_on_empty_batches
from tfdist.upstream import keras3_optimizer, replica_seeds


class ReplicaCheckpointing(Checkpointing):
    """Averages the variables that replicas have of their own, such as moving statistics."""

    def __init__(self, strategy: Replicas[Any]) -> None:
        self._strategy = strategy

    def synchronize(self) -> None:
        if self._strategy.statistics:
            self._strategy.statistics.average()

    def finish(self, model: tf.keras.Model) -> None:
        """Sets the moving statistics of all replicas to their means, as in checkpoints."""
        on_read = sync_on_read.on_read_variables(model)
        sync_on_read.set_to_averages(self._strategy.tf_strategy, on_read)


class Replicas(Strategy[OptionsT]):
    """A `Strategy` over a synchronous `tf.distribute.Strategy`; subclasses implement `build`.

    Attributes:
      statistics: averages what Keras 3 keeps per replica; None with Keras 2, which does it itself.
      gradient_dtype: the dtype in which the gradients are summed; None for their own.
    """

    statistics: AveragedStatistics | None = None
    gradient_dtype: str | None = None

    def set_up(self, options: OptionsT) -> None:
        sync_on_read.apply()
        collective_sparse_gradients.apply()
        replica_seeds.apply(replica_seeds.of_replica)
        self.tf_strategy = self.build(options)
        if keras_compat.is_keras_3(tf.keras.Model):
            self.statistics = AveragedStatistics(
                self.tf_strategy, _mean_over_replicas, is_chief=self.topology.is_chief
            )
        self.checkpointing = ReplicaCheckpointing(self)
        self.sum_of_step, self.replica_of_step = _sum_over_replicas, _replica

    def build(self, options: OptionsT) -> tf.distribute.Strategy:
        """Builds the `tf.distribute.Strategy` of this task."""
        raise NotImplementedError

    def wrap_optimizer(self, optimizer: Any) -> Any:
        if keras_compat.is_keras_3(optimizer):
            checks.check_made_in_scope(optimizer, self.tf_strategy, self.name)
            sum_pairs = keras3_optimizer.take_sum(optimizer)
            return keras3_optimizer.apply_reduced(optimizer, self._reducing(sum_pairs))
        found = aggregation_of(optimizer)
        if found is None and self.gradient_dtype is None:
            return optimizer
        if found is None:
            raise UsageError(
                "--gradient_dtype",
                received=f"{self.gradient_dtype} with {type(optimizer).__name__}",
                accepted="only a tf.keras.optimizers.Optimizer",
                remedy="Leave it out, or choose another optimizer.",
            )
        owner, name = found
        return reduce_gradients(optimizer, self._reducing(getattr(owner, name)))

    def _reducing(self, sum_pairs: Any) -> Any:
        """Returns the function that combines the gradients of the replicas by TensorFlow's sum."""
        sums = partial(sums_of_pairs, sum_pairs, self.gradient_dtype)
        return partial(reduce_weighted, sums=sums, replicas=self.topology.num_replicas)

    def states_of_replica(self, model: tf.keras.Model) -> list[tf.Variable]:
        return list(filter(sync_on_read.is_on_read, metric_states.states_of(model)))

    def prepare(self, model: tf.keras.Model) -> None:
        checks.check_is_not_compiled_by_xla(model, self.name)
        if keras_compat.is_keras_3(model):
            checks.check_model_of_keras_3(model, self.name)
            checks.check_scope(model, self.tf_strategy, self.name)
            keep_on_empty_batches(model)

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [*filter(None, [self.statistics]), EqualWeights(self)]


def _sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _replica() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def _mean_over_replicas(values: list[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, values))
