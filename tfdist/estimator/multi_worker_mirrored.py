"""The `multi_worker_mirrored` strategy for Estimators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.coordination.agreement import SHARE_DIRECTORY
from tfdist.errors import UsageError
from tfdist.estimator.sessions import Sessions

_SAVE_STEPS = 1000


class MultiWorkerMirroredSessions(Sessions):
    """Sessions whose workers make each step, and save, together."""

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
        """Makes all workers save at the same steps, because saving is a collective operation."""
        if (seconds := options.get("save_checkpoints_secs")) is not None:
            raise UsageError(
                "RunConfig save_checkpoints_secs",
                received=seconds,
                accepted=f"None under {self.strategy.name}",
                remedy="Use save_checkpoints_steps, because all workers save together.",
            )
        if not (steps := options.get("save_summary_steps", 1)):
            raise UsageError(
                "RunConfig save_summary_steps",
                received=steps,
                accepted="a number of at least 1",
                remedy="Leave it out: without summaries TensorFlow saves no checkpoint here.",
            )
        return {"save_checkpoints_steps": _SAVE_STEPS, **options}

    def agree(self, number: int) -> int:
        # Not with a collective operation, because those of a session would get the same numbers.
        self.strategy.agreement.check(
            "resuming", lambda: {"the checkpoint": f"step {number}"}, remedy=SHARE_DIRECTORY
        )
        return number
