"""The `horovod` strategy for Estimators."""

from __future__ import annotations

from functools import partial
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
        wrap = partial(hvd.DistributedOptimizer, compression=self.strategy.compression)
        return distributed(optimizer, wrap)

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return [_BroadcastHook(self)]

    def agree(self, number: int) -> int:
        # Use a session, because an Estimator's script may have turned eager execution off.
        with tf.Graph().as_default(), tf.compat.v1.Session(config=self.config) as session:
            return int(session.run(hvd.broadcast(tf.constant(number, tf.int64), root_rank=0)))


class _BroadcastHook(hvd.BroadcastGlobalVariablesHook):
    """Copies the variables of rank 0 to all ranks; fails if the optimizer is not wrapped."""

    def __init__(self, sessions: HorovodSessions) -> None:
        super().__init__(root_rank=0)
        self._sessions = sessions

    def begin(self) -> None:
        if not self._sessions.averages:
            raise not_wrapped(self._sessions.strategy.name)
        super().begin()
