"""How TF1 sessions, and so Estimators, take part in a job: the contract and its simplest form.

Each strategy that supports Estimators has a subclass of `Sessions`, which its row in the table of
strategies names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.strategies.base import Strategy

NOT_WRAPPED = (
    "The model's optimizer was not passed to job.optimizer, so that each task would train alone: "
    "call it in the model function (config.job.optimizer), or before model_to_estimator."
)


class Sessions:
    """One task's part in the sessions of a job.

    Args:
      strategy: how the job is distributed.
    """

    #: Whether ranks other than the chief have an output directory of their own, to be thrown away.
    has_private_model_dir: ClassVar[bool] = False

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which `tf.estimator` and TensorFlow learn of the cluster."""
        return {}

    @property
    def config(self) -> tf.compat.v1.ConfigProto:
        """The options of this task's sessions: the threads, and the GPUs that it may see."""
        options = self.strategy.options
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            intra_op_parallelism_threads=options.num_intra_threads or 0,
            inter_op_parallelism_threads=options.num_inter_threads or 0,
        )
        # As in `tf.estimator`: more rounds of optimization cost more than they gain.
        config.graph_options.rewrite_options.meta_optimizer_iterations = 1
        # Sessions do not look at what `tf.config` has made visible.
        gpus = [gpu.name.rsplit(":", 1)[1] for gpu in tf.config.get_visible_devices("GPU")]
        config.gpu_options.visible_device_list = ",".join(gpus)
        if not gpus:
            config.device_count["GPU"] = 0
        return config

    @property
    def train_distribute(self) -> tf.distribute.Strategy | None:
        """The strategy that `tf.estimator` trains under; None if it needs none."""
        return None

    @property
    def is_coordinated(self) -> bool:
        """Whether workers train through TensorFlow's own coordinator, in `train_and_evaluate`."""
        return False

    def run_config_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `tf.estimator.RunConfig`, as this strategy needs them.

        Raises:
          UsageError: the strategy cannot work with one of them.
        """
        return options

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """The optimizer for a model function."""
        return self.strategy.wrap_optimizer(optimizer)

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """The hooks that the engine needs in every task's training session."""
        return []

    def begin_training(self) -> None:
        """Called before each training of an Estimator.

        Raises:
          RuntimeError: the strategy allows only one.
        """

    def agree(self, number: int) -> int:
        """The chief's number, if the tasks may have read different ones; collective then.

        Raises:
          RuntimeError: the tasks read different numbers, so they do not share a directory.
        """
        return number

    def device_setter(self) -> Any:
        """For `tf.compat.v1.device`: places variables on the ps, and the rest on this task.

        Raises:
          UsageError: the strategy does not support session code, or this task is an evaluator.
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
          UsageError: the strategy does not support session code, or this task is an evaluator.
        """
        raise self._no_sessions()

    def _no_sessions(self) -> UsageError:
        return UsageError(
            "--strategy",
            received=f"{self.strategy.name} for session code",
            accepted="one_device, parameter_server",
            remedy="Choose one of these, or make the model function that of an Estimator.",
        )


class LocalSessions(Sessions):
    """Sessions on this machine, or on the server at `master`."""

    @property
    def master(self) -> str:
        """The target of the sessions; empty for this process."""
        return ""

    def device_setter(self) -> Any:
        self._check_trains()
        return None

    def monitored_session(
        self, *, hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (), **options: Any
    ) -> Any:
        self._check_trains()
        return tf.compat.v1.train.MonitoredTrainingSession(
            master=self.master,
            is_chief=self.strategy.topology.is_chief,
            config=self.config,
            hooks=[*hooks, *self.hooks()],
            **options,
        )

    def _check_trains(self) -> None:
        """Refuses an evaluator, whose session would wait two hours for the chief's variables."""
        if self.strategy.task.type == "evaluator":
            raise UsageError(
                "task.type",
                received="evaluator, for session code",
                accepted="chief, worker, ps",
                remedy="Leave the evaluator out and evaluate in the leader, or make the model "
                "function that of an Estimator.",
            )
