"""`EstimatorJob`: the `Job` of a script with Estimators or TF1 sessions, and its start.

@tfdist.estimator.main
def main(job): ...

tfdist.estimator.run(main)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import tensorflow as tf

from tfdist import entry
from tfdist.config.flags import define_flags
from tfdist.config.role import TaskRole
from tfdist.config.strategies import table
from tfdist.coordination.liveness.reporter import Reporter
from tfdist.estimator.sessions import Sessions
from tfdist.job import Job, Optimizer
from tfdist.storage import lock
from tfdist.storage.output_directory import OutputDirectory, output_path
from tfdist.training.state import TrainingState
from tfdist.upstream import session_recovery_wait

# The end of TensorFlow's warning about each function of `tf.estimator`.
_IS_DEPRECATED = "is deprecated and will be removed"


class EstimatorJob(Job):
    """A job with Estimators or sessions, as one of its tasks sees it.

    Attributes:
      sessions: configures this task's sessions.
      reporter: reports what this task does.
    """

    def __init__(self, role: TaskRole, state: TrainingState) -> None:
        super().__init__(role, state)
        tf.get_logger().addFilter(_is_wanted)
        session_recovery_wait.apply()
        estimator = role.own_spec.estimator
        assert estimator is not None
        self.reporter: Reporter = state.reporter
        self.sessions: Sessions = table.load(estimator.sessions)(state.strategy, role)

    def wrap_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Wraps an optimizer for a model function, or for `model_to_estimator`.

        Args:
          optimizer: a v1 optimizer or a Keras optimizer.
        """
        return self.sessions.wrap_optimizer(optimizer)

    def device_setter(self) -> Callable[[tf.Operation], str] | None:
        """The argument of `tf.compat.v1.device`; see `Sessions.device_setter`."""
        return self.sessions.device_setter()

    def monitored_session(
        self,
        checkpoint_dir: str | None = None,
        *,
        hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (),
        **options: Any,
    ) -> tf.compat.v1.train.MonitoredSession:
        """This task's `tf.compat.v1.train.MonitoredTrainingSession`.

        Args:
          checkpoint_dir: the directory that all tasks share; None saves nothing.
          hooks: hooks in addition to those that the strategy needs.
          **options: its other arguments, such as `save_checkpoint_secs`.

        Raises:
          UsageError: the strategy does not support session code, or this task is an evaluator, or
            `checkpoint_dir` is a URL, or TensorFlow would interpret it as a pattern.
          OutputError: another job writes in `checkpoint_dir`.
        """
        self.sessions.check_session_code()
        if checkpoint_dir:
            checkpoint_dir = str(output_path("checkpoint_dir", checkpoint_dir))
            if self.is_chief:
                lock.hold(OutputDirectory(checkpoint_dir).lock)
        return tf.compat.v1.train.MonitoredTrainingSession(
            master=self.sessions.master,
            is_chief=self.is_chief,
            checkpoint_dir=checkpoint_dir,
            config=self.sessions.config,
            hooks=[*hooks, *self.sessions.hooks()],
            **options,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Estimators copy their configuration repeatedly, but a task has only one job.
        return self


def init() -> EstimatorJob:
    """Like `tfdist.init`, for Estimators and session code.

    Also sets TF_CONFIG to the value that TensorFlow needs for this job, or removes it.
    """
    job = entry.start(EstimatorJob, os.environ)
    # Estimators read their cluster only from TF_CONFIG.
    os.environ.pop("TF_CONFIG", None)
    os.environ.update(job.sessions.environment)
    return job


def main(function: Callable[[EstimatorJob], object]) -> entry.Main:
    """Like `tfdist.main`, for the body of a script with Estimators or sessions."""
    define_flags()
    return entry.main_of(function, init)


def _is_wanted(record: logging.LogRecord) -> bool:
    return _IS_DEPRECATED not in str(record.msg)
