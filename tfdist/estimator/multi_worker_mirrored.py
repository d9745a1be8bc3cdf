"""`multi_worker_mirrored` for Estimators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.estimator.sessions import Sessions
from tfdist.strategies.base import Strategy
from tfdist.strategies.multi_worker_mirrored import check_same_checkpoint

_SAVE_STEPS = 1000


class MultiWorkerMirroredSessions(Sessions):
    """Sessions whose workers train and save together, step by step."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._agreements = 0

    @property
    def environment(self) -> dict[str, str]:
        cluster, task = self.strategy.cluster, self.strategy.task
        return {"TF_CONFIG": cluster.tf_config(task)} if cluster else {}

    @property
    def train_distribute(self) -> tf.distribute.Strategy:
        return self.strategy.tf_strategy

    @property
    def is_coordinated(self) -> bool:
        return bool(self.strategy.cluster)

    def run_config_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options with which every worker saves at the same steps: saving is collective."""
        for name, accepted in (("save_checkpoints_secs", None), ("save_summary_steps", "from 1")):
            value = options.get(name, 1 if accepted else None)
            if (value is not None) if accepted is None else not value:
                raise UsageError(
                    f"RunConfig {name}",
                    received=value,
                    accepted=accepted or f"None under {self.strategy.name}",
                    remedy="Save by steps, which all workers make together: save_checkpoints_steps."
                    if accepted is None
                    else "Leave it out: without summaries TensorFlow saves no checkpoint here.",
                )
        return {"save_checkpoints_steps": _SAVE_STEPS, **options}

    def agree(self, number: int) -> int:
        # Not by a collective operation: those of a session are numbered from where these begin.
        store = self.strategy.kv_store
        if store is not None:
            self._agreements += 1
            key = f"tfdist_agreement_{self._agreements}"
            tasks = self.strategy.topology.peers
            store.post(f"{key}.{self.strategy.task}", str(number))
            numbers = [store.read(f"{key}.{task}", self.strategy.startup_timeout) for task in tasks]
            check_same_checkpoint(tasks, [f"step {number}" for number in numbers])
        return number
