"""What jobs whose tasks run TF1-style sessions have in common; `Job` has the contract."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training import session_manager

from tfdist.errors import UsageError

if TYPE_CHECKING:
    from tfdist.strategies.base import Job

    _Base = Job
else:
    _Base = object

# TensorFlow lets a worker that came before the chief sleep for 30 seconds at a time.
_RECOVERY_WAIT_SECONDS = 1


class TakesSessions(_Base):
    """For a `Job`: sessions on this machine, or on the server at `session_master`."""

    session_master = ""

    def device_setter(self) -> Any:
        self._check_trains()
        return None

    def monitored_session(
        self, *, hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (), **options: Any
    ) -> Any:
        self._check_trains()
        return tf.compat.v1.train.MonitoredTrainingSession(
            master=self.session_master,
            is_chief=self.is_chief,
            config=self.session_config,
            hooks=[*hooks, *self.session_hooks()],
            **options,
        )

    def _check_trains(self) -> None:
        """Refuses an evaluator, whose session would wait two hours for variables of a chief."""
        if self.evaluates:
            raise UsageError(
                "task.type",
                received="evaluator, for session code",
                accepted="chief, worker, ps",
                remedy="Leave the evaluator out and evaluate in the task that leads, or make the "
                "model function that of an Estimator.",
            )


def _with_short_waits(init: Any) -> Any:
    @functools.wraps(init)
    def initialize(*args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("recovery_wait_secs", _RECOVERY_WAIT_SECONDS)
        init(*args, **kwargs)

    return initialize


session_manager.SessionManager.__init__ = _with_short_waits(session_manager.SessionManager.__init__)
