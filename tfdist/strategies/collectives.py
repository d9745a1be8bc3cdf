"""Collective operations for tasks that each train their own copy of a model.

    sums = collectives.sum([variable.value() for variable in variables])
    collectives.broadcast(variables)

Every task calls them in the same order. `TensorFlowCollectives` uses TensorFlow's all-reduce;
Horovod's collectives are in `tfdist.strategies.horovod`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.strategies.replicas.collective_sparse_gradients import with_small_tables
from tfdist.strategies.sizes import bytes_of

#: The gradients that are sent together: few messages, and the first are sent early.
PACK_BYTES = 4 * 2**20


class Collectives(ABC):
    """Collective operations over the training tasks; by default, all are computed with `sum`.

    Attributes:
      rank: the number of this task, from 0.
      size: the number of tasks.
    """

    rank: int
    size: int

    @abstractmethod
    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over all tasks; their shapes and dtypes are the same in each task."""

    def mean(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The means of tensors over all tasks."""
        return [total / self.size for total in self.sum(values)]

    def gather(self, number: int) -> list[int]:
        """Gathers a number from each task; returns them in rank order."""
        place = tf.one_hot(self.rank, self.size, on_value=number, off_value=0, dtype=tf.int64)
        (gathered,) = self.sum([place])
        return [int(value) for value in gathered.numpy()]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Copies the values of rank 0 to all tasks."""
        variables = keras_compat.as_tensorflow(variables)
        values = [variable.value() for variable in variables]
        if self.rank != 0:
            values = [tf.zeros_like(value) for value in values]
        for variable, value in zip(variables, self.sum(values), strict=True):
            variable.assign(value)

    def broadcast_text(self, text: str) -> str:
        """Returns the text of rank 0 in all tasks."""
        content = text.encode()
        own = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
        length = self.gather(len(own))[0]
        (found,) = self.sum([tf.constant(own if self.rank == 0 else np.zeros(length, np.int64))])
        return bytes(found.numpy().tobytes()).rstrip(b"\0").decode()


def by_dtype(
    operation: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Applies `operation` once per dtype; returns the results in the order of the values."""
    results: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(value.dtype for value in values):
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        found = operation([values[place] for place in places])
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(values))]


def in_packs(
    operation: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Applies `operation` once per pack of at least `PACK_BYTES`, to the last values first.

    The gradients of the last layers are known first, so their pack is sent while TensorFlow
    computes those of other layers. `CommunicationOptions.bytes_per_pack` of TensorFlow does the
    same.
    """
    packs: list[list[tf.Tensor]] = []
    for value in reversed(values):
        if not packs or sum(map(bytes_of, packs[-1])) > PACK_BYTES:
            packs.append([])
        packs[-1].append(value)
    results = [result for pack in packs for result in operation(pack)]
    return results[::-1]


def sums_of_pairs(
    sum_pairs: Callable[[list[tuple[Any, Any]]], Sequence[tuple[Any, Any]]],
    dtype: str | None,
    gradients: Sequence[Any],
    variables: Sequence[Any],
) -> list[Any]:
    """The sums of gradients over replicas; small tables are summed with the dense gradients.

    Args:
      sum_pairs: takes pairs of gradients and variables; returns the sums in pairs.
      dtype: the dtype in which the gradients are sent; None for their own.
      gradients: tensors, `tf.IndexedSlices`, or None.
      variables: their variables.
    """

    def sum_of(sent: list[Any]) -> list[Any]:
        return [total for total, _ in sum_pairs(list(zip(sent, variables, strict=True)))]

    # A variable that does not contribute to the loss has no gradient; Keras warns about it.
    sent = [None if g is None else tf.cast(g, dtype or g.dtype) for g in gradients]
    summed = with_small_tables(sent, variables, sum_of)
    pairs = zip(summed, gradients, strict=True)
    return [None if total is None else tf.cast(total, own.dtype) for total, own in pairs]


class TensorFlowCollectives(Collectives):
    """Collectives over the tasks of a `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
      strategy: the strategy, with one device per task; models can be created outside its scope.
      rank: the number of this task.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int) -> None:
        self.rank = rank
        self.size = int(strategy.num_replicas_in_sync)
        self._strategy = strategy
        # Concrete functions by shapes and dtypes, because TensorFlow warns about a function that it
        # traces repeatedly.
        self._sums: dict[Any, Any] = {}

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return by_dtype(self._sum_of_one_dtype, values)

    def _sum_of_one_dtype(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        key = tuple((value.dtype, tuple(value.shape)) for value in values)
        if key not in self._sums:
            specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
            self._sums[key] = tf.function(self._sum_in_replica).get_concrete_function(specs)
        return list(self._sums[key](list(values)))

    def _sum_in_replica(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        def in_replica(values: list[tf.Tensor]) -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            # TensorFlow reads the device of the tensors, and arguments of a function have none.
            placed = [tf.identity(value) for value in values]
            return list(context.all_reduce(tf.distribute.ReduceOp.SUM, placed))

        return list(self._strategy.run(in_replica, (values,)))
