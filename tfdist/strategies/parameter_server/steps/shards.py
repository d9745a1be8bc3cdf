"""The shards of a dataset on the workers, as Keras sees them: each `iter` is an epoch.

    reader = shards.readers[0]                 # of one shard
    iterator = reader.at(epoch=1, step=0)      # in the thread and on the device of the worker
    function(iterator)                         # reads three batches
    reader.advance(3)
    reader.at(epoch=1, step=3)                 # the same iterator, or a new one that has skipped

The position is part of each request, so that another process or worker goes on where a shard stood.
All epochs share a dataset: each new iterator over it shuffles again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data import sharding
from tfdist.strategies.parameter_server.steps.execution_length import ExecutionLength
from tfdist.strategies.parameter_server.steps.marks import Marks
from tfdist.strategies.parameter_server.steps.tracing import converting
from tfdist.upstream import dataset_arrays


class PerWorkerShards:
    """The shards of a dataset of `job.dataset`; each `iter` is an epoch.

    Keras 2 passes it to the coordinator, and Keras 3 iterates over it. All epochs use the same
    datasets on the workers.

    Args:
      shards: the shards, with a function for each of them.
      num_workers: the number of workers.
      take_start: returns the completed epochs and, by shard, the steps from which a training
        resumes; later (0, ()).
      make_epoch: creates an epoch.
      marks: counts the steps of each shard; None if they are synchronous.

    Attributes:
      iterator_spec: the `tf.TypeSpec` of the iterators on the workers.
      readers: for each shard, its reader.
      runs_to_end: whether Keras does not request all steps of an epoch, which then reads its data
        to the end.
      always_raises_at_end: whether every epoch ends with StopIteration, as Keras 3 needs it;
        otherwise only the first one does.
      steps_per_epoch: the number of steps that the user has set; None if the data decides.
      length: the length of the next execution.
      logs: the logs of the newest finished execution with data, or of the first one if none had
        data.
      live_logs: the same for Keras 3, which reads the returned dict again at the end of the epoch.
      steps_of_epoch: by shard, the steps of the last epoch; empty until an epoch has ended.
      workers: by shard, the worker that has read it last, and has its dataset.
      marks: counts the steps of each shard; None if they are synchronous.
    """

    def __init__(
        self,
        shards: sharding.Shards,
        num_workers: int,
        take_start: Callable[[], tuple[int, Sequence[int]]],
        make_epoch: Callable[[PerWorkerShards], Iterator[Any]],
        marks: Marks | None = None,
    ) -> None:
        self.trains = shards.trains
        self.element_spec = shards.local.element_spec
        self.iterator_spec = tf.data.IteratorSpec(self.element_spec)
        self.runs_to_end = False
        self.always_raises_at_end = keras_compat.is_keras_3(tf.keras.Model)
        self.steps_per_epoch: int | None = None
        self.length = ExecutionLength(num_workers)
        self.logs: Any = None
        self.live_logs: dict[str, Any] = {}
        self.steps_of_epoch: tuple[int, ...] = ()
        self.workers = [shard % num_workers for shard in range(len(shards.makers))]
        self.marks = marks
        with dataset_arrays.as_inputs():
            self.readers = [
                ShardReader(_variant_function(make), self.element_spec, number)
                for number, make in enumerate(shards.makers)
            ]
        self._take_start = take_start
        self._make_epoch = make_epoch
        self._epochs = 0
        self._is_known = int(shards.local.cardinality()) >= 0

    def __iter__(self) -> Iterator[Any]:
        return self._make_epoch(self)

    def begin_epoch(self) -> tuple[int, list[int]]:
        """Begins the next epoch, which shuffles again.

        Returns:
          The number of the iterators over the shards; and by shard, the steps that were
          made before a restart.
        """
        epochs, steps = self._take_start() if self.trains else (0, ())
        self._epochs += epochs + 1
        return self._reading(), list(steps) or [0] * len(self.readers)

    def _reading(self) -> int:
        """How often `fit` in one process has begun the data in this epoch, for the same shuffle."""
        if not self.trains or self.steps_per_epoch is not None:
            return self._epochs
        if not self.always_raises_at_end:
            return self._epochs + 1  # Keras 2 begins it twice before the first epoch,
        # and Keras 3 at both ends of each epoch whose length it knows.
        return 2 * self._epochs - 1 if self._is_known else self._epochs

    @functools.cached_property
    def length_of_first_epoch(self) -> int | None:
        """The number of batches of all shards; None if the cardinality of one is unknown."""
        lengths = [reader.cardinality() for reader in self.readers]
        return sum(lengths) if min(lengths) >= 0 else None

    def set_logs(self, logs: Any) -> None:
        """Stores the logs of an execution."""
        self.logs = logs
        if isinstance(logs, dict):
            self.live_logs.update(logs)


class ShardReader:
    """The dataset of one shard on its worker, and the newest iterator over it.

    Args:
      make_variant: creates the dataset on the device of the caller; returns a variant tensor.
      element_spec: the `tf.TypeSpec` of its elements.
      number: that of the shard.
    """

    def __init__(
        self, make_variant: Callable[[], tf.Tensor], element_spec: Any, number: int
    ) -> None:
        self.number = number
        self._make_variant = make_variant
        self._element_spec = element_spec
        # Traced here, because several threads must not trace at the same time.
        self._skip = _skip.get_concrete_function(
            tf.data.IteratorSpec(element_spec), tf.TensorSpec([], tf.int64)
        )
        self._dataset: tf.data.Dataset | None = None
        self._iterator: Any = None
        # The number of iterators over the dataset, and of batches that the newest has returned.
        self._epoch = self._step = 0

    def at(self, epoch: int, step: int) -> Any:
        """An iterator whose next batch is that of a step.

        Args:
          epoch: the number of the iterator over the dataset, from 1.
          step: the number of batches before it.
        """
        if (self._epoch, self._step) > (epoch, step):
            self.forget()
        if self._dataset is None:
            variant = self._make_variant()
            self._dataset = tf.data.experimental.from_variant(variant, self._element_spec)
        while self._epoch < epoch:
            self._iterator = iter(self._dataset)
            self._epoch += 1
            self._step = 0
        if self._step < step:
            self._skip(self._iterator, tf.constant(step - self._step, tf.int64))
            self._step = step
        return self._iterator

    def cardinality(self) -> int:
        """The cardinality of the shard, as in `tf.data`; reads no batch.

        Creates the dataset once more, on the device of the caller.
        """
        dataset = tf.data.experimental.from_variant(self._make_variant(), self._element_spec)
        return int(dataset.cardinality())

    def advance(self, steps: int) -> None:
        """Records that batches were read from the iterator."""
        self._step += steps

    def again(self) -> ShardReader:
        """A reader of the same shard, for another worker."""
        return ShardReader(self._make_variant, self._element_spec, self.number)

    def end(self) -> None:
        """Drops the iterator and its buffers, until the next epoch."""
        self._iterator = None

    def forget(self) -> None:
        """Drops the dataset, because its worker was lost or its position is unknown."""
        self._dataset = self._iterator = None
        self._epoch = self._step = 0


@tf.function
def _skip(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(count):
        iterator.get_next_as_optional()
    return count


def _variant_function(make: Callable[[], tf.data.Dataset]) -> Any:
    """The concrete function that creates a shard on the worker that calls it."""

    @tf.function
    @tf.autograph.experimental.do_not_convert
    def variant() -> tf.Tensor:
        # Only this function is not converted: the user's may have an `if` on a tensor in a `map`.
        with converting():
            return tf.data.experimental.to_variant(make())

    return variant.get_concrete_function()
