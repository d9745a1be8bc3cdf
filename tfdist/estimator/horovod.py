"""The `horovod` strategy for Estimators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.estimator.optimizers import distributed
from tfdist.estimator.sessions import Sessions, not_wrapped
from tfdist.strategies.base import Strategy
from tfdist.strategies.horovod import Horovod


class HorovodSessions(Sessions):
    """Sessions in each rank, with an optimizer that averages the gradients over the ranks."""

    strategy: Horovod
    has_private_model_dir = True

    def __init__(self, strategy: Strategy[Any]) -> None:
        super().__init__(strategy)
        self.averages = False

    def wrap_optimizer(self, optimizer: Any) -> Any:
        self.averages = True
        return distributed(optimizer, lambda own: _Averaging(own, self.strategy))

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return [_BroadcastHook(self)]

    def agree(self, number: int) -> int:
        # Use a session, because an Estimator's script may have turned eager execution off.
        with tf.Graph().as_default(), tf.compat.v1.Session(config=self.config) as session:
            return int(session.run(hvd.broadcast(tf.constant(number, tf.int64), root_rank=0)))


class _Averaging(tf.compat.v1.train.Optimizer):
    """Averages the gradients of a v1 optimizer over the ranks.

    Args:
      optimizer: applies the averages.
      strategy: averages the gradients, those of tables with fewer bytes than Horovod's optimizer.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, strategy: Horovod) -> None:
        super().__init__(use_locking=False, name="Averaging")
        self._optimizer = optimizer
        self._strategy = strategy

    def compute_gradients(self, *args: Any, **options: Any) -> Sequence[tuple[Any, tf.Variable]]:
        pairs = self._optimizer.compute_gradients(*args, **options)
        gradients, variables = zip(*pairs, strict=True)
        # Horovod finds the tensors of the ranks by their names.
        with tf.name_scope("tfdist_averages"):
            averages = self._strategy.averages(gradients, variables)
        return list(zip(averages, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, tf.Variable]], *args: Any, **options: Any
    ) -> tf.Operation:
        return self._optimizer.apply_gradients(grads_and_vars, *args, **options)

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        names: list[str] = self._optimizer.get_slot_names()
        return names

    def variables(self) -> list[tf.Variable]:
        found: list[tf.Variable] = self._optimizer.variables()
        return found


class _BroadcastHook(hvd.BroadcastGlobalVariablesHook):
    """Copies the variables of rank 0 to all ranks; fails if the optimizer is not wrapped."""

    def __init__(self, sessions: HorovodSessions) -> None:
        super().__init__(root_rank=0)
        self._sessions = sessions

    def begin(self) -> None:
        if not self._sessions.averages:
            raise not_wrapped(self._sessions.strategy.name)
        super().begin()
