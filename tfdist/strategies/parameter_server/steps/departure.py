"""`Departure`: a worker asks the chief whether it may leave, through its own TensorFlow server.

    departure = Departure(3)
    departure.is_asked()          # in the chief: whether worker 3 asks
    departure.allow()
    departure.may_leave(server)   # in worker 3: asks; whether the chief has allowed it

The question and the answer are the value of a variable of the worker, which both can reach.
"""

from __future__ import annotations

import tensorflow as tf

_NAME = "tfdist_departure"
_ASKED, _ALLOWED = 1, 2


class Departure:
    """The question of a worker and the answer of the chief.

    Args:
      worker: the index of the worker.
    """

    def __init__(self, worker: int) -> None:
        self._device = f"/job:worker/replica:0/task:{worker}/device:CPU:0"

    def is_asked(self) -> bool:
        """Whether the worker asks to leave; connects to it in any case."""
        with tf.device(self._device):
            return bool(tf.raw_ops.VarIsInitializedOp(resource=self._handle()))

    def allow(self) -> None:
        """Allows the worker to leave."""
        with tf.device(self._device):
            self._assign(_ALLOWED)

    def may_leave(self, server: tf.distribute.Server) -> bool:
        """Asks, in the worker; returns whether the chief has allowed it."""
        with tf.Graph().as_default(), tf.device(self._device):
            is_asked = tf.raw_ops.VarIsInitializedOp(resource=self._handle())
            ask = self._assign(_ASKED)
            value = tf.raw_ops.ReadVariableOp(resource=self._handle(), dtype=tf.int32)
            with tf.compat.v1.Session(server.target) as session:
                if not session.run(is_asked):
                    session.run(ask)
                return bool(session.run(value) == _ALLOWED)

    def _handle(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_NAME)

    def _assign(self, value: int) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(resource=self._handle(), value=tf.constant(value))
