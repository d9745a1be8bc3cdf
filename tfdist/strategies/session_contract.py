"""The contract of a strategy for Estimators and sessions; `base` has that for Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.flags import JobFlags

NOT_WRAPPED = (
    "The model's optimizer was not given to job.optimizer, so that each task would train alone: "
    "call it in the model function (config.job.optimizer), or before model_to_estimator."
)


class SessionContract:
    """The part of a `Job` that Estimators and TF1 sessions ask."""

    name: ClassVar[str]
    _options: JobFlags

    @property
    def session_environment(self) -> dict[str, str]:
        """The variables from which `tf.estimator` and TensorFlow learn of the cluster."""
        return {}

    @property
    def session_config(self) -> tf.compat.v1.ConfigProto:
        """The options of this task's sessions: the threads, and the GPUs that it may see."""
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            intra_op_parallelism_threads=self._options.num_intra_threads or 0,
            inter_op_parallelism_threads=self._options.num_inter_threads or 0,
        )
        # As in `tf.estimator`: more rounds of optimisation cost more than they gain.
        config.graph_options.rewrite_options.meta_optimizer_iterations = 1
        # Sessions do not look at what `tf.config` has made visible.
        gpus = [gpu.name.rsplit(":", 1)[1] for gpu in tf.config.get_visible_devices("GPU")]
        config.gpu_options.visible_device_list = ",".join(gpus)
        if not gpus:
            config.device_count["GPU"] = 0
        return config

    @property
    def train_distribute(self) -> tf.distribute.Strategy | None:
        """The strategy that `tf.estimator` trains under; None where it needs none."""
        return None

    def session_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """The hooks that the engine needs in every task's training session."""
        return []

    def begin_training(self) -> None:
        """Called before each training of an Estimator.

        Raises:
          RuntimeError: the strategy is for one.
        """

    def agreed(self, number: int) -> int:
        """The leader's number, where the tasks may have read different ones; collective then."""
        return number

    def device_setter(self) -> Any:
        """For `tf.compat.v1.device`: places variables on the ps, and the rest on this task.

        Raises:
          UsageError: session code cannot be had under this strategy, or in an evaluator.
        """
        raise self._no_sessions()

    def monitored_session(
        self, *, hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (), **options: Any
    ) -> Any:
        """`tf.compat.v1.train.MonitoredTrainingSession` as this task's part in the job.

        Args:
          hooks: hooks beside those that the engine needs.
          **options: its other arguments, such as `checkpoint_dir`.

        Raises:
          UsageError: session code cannot be had under this strategy, or in an evaluator.
        """
        raise self._no_sessions()

    def _no_sessions(self) -> UsageError:
        return UsageError(
            "--strategy",
            received=f"{self.name} for session code",
            accepted="one_device, parameter_server",
            remedy="Choose one of these, or make the model function that of an Estimator.",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Estimators copy their configuration again and again; a task has one job.
        return self
