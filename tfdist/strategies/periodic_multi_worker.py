"""`multi_worker_mirrored` with `--sync_period`: the tasks train apart and meet now and then."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.strategies.base import Job
from tfdist.strategies.collectives import TensorFlowCollectives
from tfdist.strategies.local_sgd import outer_steps
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirrored
from tfdist.strategies.ranks import Ranks


class PeriodicMultiWorker(Ranks, MultiWorkerMirrored):
    """Every trainer with a model of its own; TensorFlow's collectives average the weights."""

    def check(self, model: tf.keras.Model) -> None:
        # Each task's model is one of its own, which no strategy of TensorFlow knows.
        Job.check(self, model)

    def optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def _set_up(self, options: JobFlags) -> None:
        super()._set_up(options)
        together = self.strategy
        devices = len(together.extended.worker_devices)
        if devices > 1:
            raise UsageError(
                "--sync_period",
                received=f"{options.sync_period} with {devices} devices",
                accepted="it with one device a task",
                remedy="Start a task for each GPU, with a CUDA_VISIBLE_DEVICES of its own.",
            )
        rank = self.cluster.trainers.index(self.task) if self.cluster else 0
        collectives = TensorFlowCollectives(together, rank, self.board, self.startup_timeout)
        self._set_up_ranks(collectives, outer_steps(options))
        # Models are made outside of its scope, as if each task were alone.
        self.strategy = tf.distribute.get_strategy()
