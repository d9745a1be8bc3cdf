"""`Sessions`: the base class that adapts a strategy to Estimators and TF1 sessions.

Each strategy that supports Estimators has a subclass of `Sessions`, which its row in the table of
strategies names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster import task_types
from tfdist.config.role import TaskRole
from tfdist.errors import UsageError
from tfdist.strategies.base import Strategy


def not_wrapped(strategy: str) -> UsageError:
    """The error for a model function whose optimizer was not wrapped for the strategy."""
    return UsageError(
        "optimizer",
        received="one that was not passed to job.wrap_optimizer",
        accepted=f"a wrapped one, under {strategy}: otherwise each task would train independently",
        remedy="Call config.job.wrap_optimizer in the model function, or job.wrap_optimizer for "
        "the optimizer of a canned Estimator or of model_to_estimator.",
    )


class Sessions:
    """Configures the sessions of one task.

    Args:
      strategy: the job's strategy.
      role: the role of this task.
    """

    #: Whether tasks other than the chief use a temporary output directory.
    has_private_model_dir: ClassVar[bool] = False
    #: Whether the strategy supports session code.
    has_session_code: ClassVar[bool] = False

    def __init__(self, strategy: Strategy[Any], role: TaskRole) -> None:
        self.strategy = strategy
        self.role = role

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that describe the cluster to `tf.estimator` and TensorFlow."""
        return {}

    @property
    def config(self) -> tf.compat.v1.ConfigProto:
        """The configuration of this task's sessions: threads and visible GPUs."""
        flags = self.role.flags
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            intra_op_parallelism_threads=flags.num_intra_threads or 0,
            inter_op_parallelism_threads=flags.num_inter_threads or 0,
        )
        # As in `tf.estimator`: more optimizer iterations cost more than they gain.
        config.graph_options.rewrite_options.meta_optimizer_iterations = 1
        # Sessions ignore the visible devices of `tf.config`.
        gpus = [gpu.name.rsplit(":", 1)[1] for gpu in tf.config.get_visible_devices("GPU")]
        config.gpu_options.visible_device_list = ",".join(gpus)
        if not gpus:
            config.device_count["GPU"] = 0
        return config

    @property
    def master(self) -> str:
        """The target of the sessions; empty for this process."""
        return ""

    @property
    def train_distribute(self) -> tf.distribute.Strategy | None:
        """The argument `train_distribute` of `tf.estimator.RunConfig`; None if not needed."""
        return None

    @property
    def is_coordinated(self) -> bool:
        """Whether workers train in TensorFlow's own coordinator, through `train_and_evaluate`."""
        return False

    def run_config_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Adapts the arguments of `tf.estimator.RunConfig` to this strategy.

        Raises:
          UsageError: the strategy does not support one of them.
        """
        return options

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Wraps an optimizer for a model function."""
        return self.strategy.wrap_optimizer(optimizer)

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """The hooks that the strategy needs in every task's training session."""
        return []

    def begin_training(self) -> None:
        """Called before each training of an Estimator.

        Raises:
          RuntimeError: the strategy supports only one training.
        """

    def agree(self, number: int) -> int:
        """Returns the chief's number in all tasks. Every training task must call it.

        Raises:
          RuntimeError: the tasks read different numbers, so they do not share a directory.
        """
        return number

    def device_setter(self) -> Callable[[tf.Operation], str] | None:
        """The argument of `tf.compat.v1.device` that places variables on the ps, and the rest here.

        Raises:
          UsageError: as `check_session_code`.
        """
        self.check_session_code()
        return None

    def check_session_code(self) -> None:
        """Checks that this task can run session code.

        Raises:
          UsageError: the strategy does not support it, or this task is an evaluator.
        """
        if not self.has_session_code:
            raise UsageError(
                "--strategy",
                received=f"{self.strategy.name} for session code",
                accepted="one_device, parameter_server",
                remedy="Choose one of these, or use the model function in an Estimator.",
            )
        # The session of an evaluator would wait two hours for the chief's variables.
        if self.strategy.settings.evaluates:
            raise UsageError(
                "task.type",
                received=f"{self.strategy.task.type}, for session code",
                accepted=", ".join(task_types.in_cluster()),
                remedy="Leave the evaluator out and evaluate in the chief, or use the model "
                "function in an Estimator.",
            )


class LocalSessions(Sessions):
    """Sessions on this machine."""

    has_session_code = True
