"""The job of a script with Estimators or TF1 sessions, and how such a script starts.

@tfdist.estimator.main
def main(job): ...

tfdist.estimator.run(main)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import tensorflow as tf

from tfdist import start
from tfdist.estimator.sessions import Sessions
from tfdist.flags import define_estimator_flags
from tfdist.job import Job
from tfdist.plan import Plan
from tfdist.strategies import table
from tfdist.training.run import TrainingRun
from tfdist.upstream import estimator_deprecation, session_recovery_wait


class EstimatorJob(Job):
    """This task's part in a job of Estimators or sessions.

    Attributes:
      sessions: how this task's sessions take part.
    """

    for_estimators = True

    def __init__(self, plan: Plan, run: TrainingRun) -> None:
        super().__init__(plan, run)
        estimator_deprecation.apply()
        session_recovery_wait.apply()
        self.sessions: Sessions = table.load(plan.own_spec.sessions)(run.strategy)

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer for a model function, or for `model_to_estimator`.

        Args:
          optimizer: a v1 optimizer or a Keras one.
        """
        return self.sessions.wrap_optimizer(optimizer)

    def device_setter(self) -> Any:
        """For `tf.compat.v1.device`; see `Sessions.device_setter`."""
        return self.sessions.device_setter()

    def monitored_session(
        self, *, hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (), **options: Any
    ) -> Any:
        """This task's `MonitoredTrainingSession`; see `Sessions.monitored_session`."""
        return self.sessions.monitored_session(hooks=hooks, **options)

    @property
    def leader_evaluates(self) -> bool:
        """Whether the task that leads evaluates by itself, without an evaluator."""
        return self.plan.leader_evaluates

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Estimators copy their configuration again and again; a task has one job.
        return self


def init() -> EstimatorJob:
    """`tfdist.init` for Estimators and session code.

    TF_CONFIG is then what TensorFlow must read for this job: absent where it does not use it.
    """
    job = start.start(EstimatorJob, os.environ)
    # Estimators have no other way to learn what their cluster is.
    os.environ.pop("TF_CONFIG", None)
    os.environ.update(job.sessions.environment)
    return job


def main(function: Callable[[EstimatorJob], Any]) -> start.Main:
    """`tfdist.main` for the body of a script with Estimators or sessions."""
    define_estimator_flags()
    return start.main_of(function, init)
