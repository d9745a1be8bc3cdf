"""`multi_worker_mirrored` with `--sync_period`: local SGD over TensorFlow's collectives."""

from __future__ import annotations

from typing import Any

from tfdist.config.strategies.rows import MultiWorkerMirroredOptions
from tfdist.errors import UsageError
from tfdist.strategies.collectives import TensorFlowCollectives
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirrored, build_strategy
from tfdist.strategies.ranks import Ranks
from tfdist.upstream import tf_coordination


class MultiWorkerLocalSGD(Ranks[MultiWorkerMirroredOptions]):
    """Each task trains its own model; TensorFlow's collectives average the weights."""

    name = MultiWorkerMirrored.name

    def set_up(self, options: MultiWorkerMirroredOptions) -> None:
        strategy = build_strategy(self.settings, options)
        devices = len(strategy.extended.worker_devices)
        if devices > 1:
            raise UsageError(
                "--sync_period",
                received=f"{options.sync_period} with {devices} devices",
                accepted="one device per task",
                remedy="Start one task for each GPU, each with its own CUDA_VISIBLE_DEVICES.",
            )
        self.kv_store = tf_coordination.store_of(self.cluster)
        rank = self.cluster.training_tasks.index(self.task) if self.cluster else 0
        self.set_up_ranks(TensorFlowCollectives(strategy, rank))

    def wrap_optimizer(self, optimizer: Any) -> Any:
        return optimizer
