"""The `horovod` strategy for Estimators."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.estimator.optimizers import Wrapper, distributed
from tfdist.estimator.sessions import Sessions, not_wrapped
from tfdist.strategies.horovod import Horovod


class HorovodSessions(Sessions):
    """Sessions in each rank, with an optimizer that averages the gradients over the ranks."""

    strategy: Horovod
    has_private_model_dir = True
    averages = False

    def wrap_optimizer(self, optimizer: Any) -> Any:
        self.averages = True
        return distributed(optimizer, lambda own: _Averaging(own, self.strategy))

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return [_BroadcastHook(self)]

    def agree(self, number: int) -> int:
        # Use a session, because an Estimator's script may have turned eager execution off.
        with tf.Graph().as_default(), tf.compat.v1.Session(config=self.config) as session:
            return int(session.run(hvd.broadcast(tf.constant(number, tf.int64), root_rank=0)))


class _Averaging(Wrapper):
    """Averages the gradients of a v1 optimizer over the ranks.

    Args:
      optimizer: applies the averages.
      strategy: computes them, with fewer bytes for tables than `hvd.DistributedOptimizer`.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, strategy: Horovod) -> None:
        super().__init__(optimizer, "Averaging")
        self._strategy = strategy

    def compute_gradients(self, *args: Any, **options: Any) -> Any:
        pairs = super().compute_gradients(*args, **options)
        gradients, variables = zip(*pairs, strict=True)
        # Horovod finds the tensors of the ranks by their names.
        with tf.name_scope("tfdist_averages"):
            averages = self._strategy.averages(gradients, variables)
        return list(zip(averages, variables, strict=True))


class _BroadcastHook(hvd.BroadcastGlobalVariablesHook):
    """Copies the variables of rank 0 to all ranks; fails if the optimizer is not wrapped."""

    def __init__(self, sessions: HorovodSessions) -> None:
        super().__init__(root_rank=0)
        self._sessions = sessions

    def begin(self) -> None:
        if not self._sessions.averages:
            raise not_wrapped(self._sessions.strategy.name)
        super().begin()
