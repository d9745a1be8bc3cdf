"""What tasks that each train a model of their own do together.

    sums = collectives.sum([variable.value() for variable in variables])
    collectives.broadcast(variables)

Every task calls them in the same order. Horovod's are in `horovod`; these are TensorFlow's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.coordination.preemption import Board


class Collectives(Protocol):
    """Collective operations over the tasks that train, which are numbered from 0.

    Attributes:
      rank: this task's number.
      size: how many there are.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums over all tasks of tensors that have the same shapes and dtypes everywhere."""

    def gather(self, number: int) -> list[int]:
        """Every task's number, in the order of the ranks."""

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every task the values that rank 0 has."""

    def broadcast_object(self, text: str) -> str:
        """The text of rank 0."""


def by_dtype(
    operation: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What `operation` makes of the values, called once for all of each dtype."""
    results: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(value.dtype for value in values):
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        found = operation([values[place] for place in places])
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(values))]


class TensorFlowCollectives:
    """Over the tasks of a `tf.distribute.MultiWorkerMirroredStrategy` with one device each.

    Args:
      strategy: the strategy; models need not be made in its scope.
      rank: this task's number.
      board: what the tasks share besides; None where there is one task.
      timeout: seconds to wait for what rank 0 says.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, rank: int, board: Board | None, timeout: float
    ) -> None:
        self._strategy = strategy
        self._rank = rank
        self._board = board
        self._timeout = timeout
        self._said = 0
        # By what they sum: TensorFlow warns of a function that it traces for one after the other.
        self._sums: dict[Any, Any] = {}

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return int(self._strategy.num_replicas_in_sync)

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return by_dtype(self._sum_of_one_dtype, values)

    def gather(self, number: int) -> list[int]:
        place = tf.one_hot(self._rank, self.size, on_value=number, off_value=0, dtype=tf.int64)
        (everywhere,) = self.sum([place])
        return [int(value) for value in everywhere.numpy()]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        variables = keras_compat.as_tensorflow(variables)
        values = [variable.value() for variable in variables]
        if self._rank != 0:
            values = [tf.zeros_like(value) for value in values]
        for variable, value in zip(variables, self.sum(values), strict=True):
            variable.assign(value)

    def broadcast_object(self, text: str) -> str:
        if self._board is None:
            return text
        self._said += 1
        key = f"tfdist_said_{self._said}"
        if self._rank == 0:
            self._board.post(key, text)
        said = self._board.read(key, self._timeout)
        if said is None:
            raise TimeoutError(f"worker:0 has not answered within {self._timeout:g} s")
        return said

    def _sum_of_one_dtype(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        key = tuple((value.dtype, tuple(value.shape)) for value in values)
        if key not in self._sums:
            self._sums[key] = tf.function(self._sum_in_replica)
        return list(self._sums[key](list(values)))

    def _sum_in_replica(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        def in_replica(values: list[tf.Tensor]) -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            # TensorFlow asks them for their device, which arguments of a function do not have.
            placed = [tf.identity(value) for value in values]
            return list(context.all_reduce(tf.distribute.ReduceOp.SUM, placed))

        return list(self._strategy.run(in_replica, (values,)))
