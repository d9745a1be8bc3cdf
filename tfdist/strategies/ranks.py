"""Strategies under which every task trains a model of its own: those of Horovod and local SGD.

The tasks are ranks with a shard of the data each. Keras knows nothing of the others: what its logs
say, how many steps an epoch has and what all start with is seen to here, by collectives.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.checkpoints import Position
from tfdist.strategies import datasets
from tfdist.strategies.base import DatasetFunction, Job
from tfdist.strategies.collectives import Collectives
from tfdist.strategies.local_sgd import LocalSGD, OuterSteps, Synchronization
from tfdist.strategies.redealt import Rest, rest_of_epoch


class Ranks(Job):
    """The part of a `Job` that its subclasses share; they call `_set_up_ranks`."""

    collectives: Collectives
    local: LocalSGD | None

    def _set_up_ranks(self, collectives: Collectives, outer: OuterSteps | None) -> None:
        """`outer` is None where the gradients of each step meet."""
        self.collectives = collectives
        self.local = LocalSGD(collectives, outer) if outer else None

    @property
    def is_chief(self) -> bool:
        return self.collectives.rank == 0

    @property
    def saves(self) -> bool:
        return self.is_chief

    @property
    def num_replicas(self) -> int:
        return self.collectives.size

    @property
    def num_input_pipelines(self) -> int:
        return self.num_replicas

    @property
    def input_pipeline_id(self) -> int:
        return self.collectives.rank

    @property
    def num_local_replicas(self) -> int:
        return 1

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def engine_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        callbacks = [_ClusterMetrics(self.collectives), self._statistics]
        return [Synchronization(self.local), *callbacks] if self.local else callbacks

    def scaled_lr(self, learning_rate: float) -> float:
        # A step by itself is made of one replica's batch.
        return learning_rate if self.local else super().scaled_lr(learning_rate)

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        return self.local.state(model) if self.local else {}

    def make_equal(self) -> None:
        if self.local:
            self.local.synchronize()
        self._statistics.average()

    @cached_property
    def _statistics(self) -> _AveragedStatistics:
        return _AveragedStatistics(self.collectives)

    def start_equal(self, model: tf.keras.Model, position: Position) -> Position:
        """Gives every rank the epoch, the weights and the optimizer's state of rank 0.

        Raises:
          ValueError: the model has no weights yet.
        """
        if not model.built:
            raise ValueError(
                f"model: received one without weights; accepted under {self.name}: a built one, "
                "whose weights all ranks can start with. Give it an Input layer or call "
                "model.build."
            )
        optimizer_variables = model.optimizer.variables
        if callable(optimizer_variables):
            optimizer_variables = optimizer_variables()
        # Keras 2 does not count the learning rate among the optimizer's variables.
        learning_rate = compat.learning_rate_variable(model.optimizer)
        state = [] if learning_rate is None else [learning_rate]
        self.collectives.broadcast([*model.variables, *optimizer_variables, *state])
        if self.local:
            self.local.begin()
        return Position.from_json(self.collectives.say(position.to_json()))

    def rest_of_epoch(
        self, model: tf.keras.Model, position: Position, usual_steps: int | None
    ) -> Rest | None:
        # Where Keras reads less than all of the data for an epoch, they do not end with it.
        whole = [int(dataset.cardinality()) for dataset in self._local_datasets[-1:]]
        if self._dataset_fn is None or self.is_infinite or whole != [usual_steps]:
            return None
        dataset_fn, ranks = self._dataset_fn, position.earlier[0][0]
        own_rank, own_ranks = self.collectives.rank, self.collectives.size

        def shard(index: int) -> tf.data.Dataset:
            return dataset_fn(
                tf.distribute.InputContext(
                    num_input_pipelines=ranks, input_pipeline_id=index, num_replicas_in_sync=ranks
                )
            )

        counts = [
            datasets.count_batches(shard(index)) if index % own_ranks == own_rank else 0
            for index in range(ranks)
        ]
        (summed,) = self.collectives.sum([tf.constant(counts, tf.int64)])
        return rest_of_epoch(
            shard,
            summed.numpy().tolist(),
            position,
            ranks=own_ranks,
            rank=own_rank,
            usual_steps=whole[0],
            iterators=compat.iterators_before(model, position.epoch, whole[0]),
        )

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        local = dataset_fn(self.input_context)
        if not training:
            if any(True for _ in local.take(1)):
                return local
            # Keras wants a batch to evaluate, also in a rank that has no example.
            return datasets.empty_batches(dataset_fn(tf.distribute.InputContext()), 1)
        # A rank must know before an epoch whether the others have more.
        batches = datasets.count_batches(local)
        if batches == datasets.INFINITE:
            return self._remembered(local)
        everywhere = self.collectives.gather(batches)
        if min(everywhere) == 0:
            raise RuntimeError(
                f"rank {everywhere.index(0)} of {len(everywhere)} got no example to train on: "
                "train on fewer ranks, or on more data."
            )
        steps = max(everywhere)
        if batches < steps:
            source = dataset_fn(self.input_context)
            local = datasets.with_repeats(local, steps - batches, source)
        return self._remembered(local.apply(tf.data.experimental.assert_cardinality(steps)))

    def _evaluate(self, model: tf.keras.Model, dataset_fn: DatasetFunction) -> dict[str, float]:
        model.evaluate(self.eval_dataset(dataset_fn), verbose=0)
        return _summed_results(model, self.collectives)


class _ClusterMetrics(tf.keras.callbacks.Callback):
    """Puts the metrics of all ranks' examples into the logs in place of this rank's.

    The metrics' variables are sums, as TensorFlow's own strategies take them to be, so that summing
    them over the ranks counts each example once, also where the ranks have unequally many.
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
        # Evaluation resets the metrics, so the training's are read here.
        if self._in_epoch:
            self._training = _summed_results(self.model, self._collectives)

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        if self._in_epoch:
            self._validation = _summed_results(self.model, self._collectives)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        training = self._training or _summed_results(self.model, self._collectives)
        if logs is not None:
            logs.update(training)
            logs.update({f"val_{name}": value for name, value in self._validation.items()})
        self._in_epoch = False


class _AveragedStatistics(tf.keras.callbacks.Callback):
    """Averages what is not trained, such as BatchNormalization's statistics.

    After each epoch, before a validation and before a checkpoint: what is validated is what is
    saved, as `tf.distribute` saves it.
    """

    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self._collectives = collectives
        self._in_training = False

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._in_training = True

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self._in_training = False

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        # Another evaluation may be one of a rank by itself.
        if self._in_training:
            self.average()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.average()

    def average(self) -> None:
        """Makes the statistics of all ranks their mean; collective."""
        variables = [
            variable
            for variable in compat.as_tensorflow(self.model.non_trainable_variables)
            if variable.dtype.is_floating
        ]
        sums = self._collectives.sum([variable.value() for variable in variables])
        for variable, total in zip(variables, sums, strict=True):
            variable.assign(total / self._collectives.size)


def _summed_results(model: tf.keras.Model, collectives: Collectives) -> dict[str, float]:
    """The metrics' results over all ranks, each rank's own left as they are; collective."""
    variables = compat.as_tensorflow(compat.metric_variables(model))
    before = [variable.value() for variable in variables]
    for variable, total in zip(variables, collectives.sum(before), strict=True):
        variable.assign(total)
    # Keras 3.10 has made numbers of them already.
    results = {
        name: tf.convert_to_tensor(value).numpy()
        for name, value in model.get_metrics_result().items()
    }
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return results
