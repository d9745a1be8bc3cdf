"""Connects the chief to workers that come, each as soon as it answers.

    reconnection = Reconnection(cluster, addresses)      # that of TensorFlow's coordinator
    reconnection.wait_for(2)       # after a failure of worker 2, in any thread

TensorFlow's coordinator connects to all of its workers together: one that is back is not used while
another one is away, and never if that does not come back. Here the workers that are away are not
part of TensorFlow's cluster.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

from tfdist.coordination.probe import Listener, identify

_POLL_SECONDS = 0.1


class Reconnection:
    """The workers that the chief is connected to.

    Args:
      cluster: that of TensorFlow's coordinator.
      addresses: those of all workers.
    """

    def __init__(self, cluster: Any, addresses: Sequence[str]) -> None:
        self._cluster = cluster
        self._addresses = addresses

    def wait_for(self, worker: int, *, leaves: bool = False) -> None:
        """Waits until a worker that is away answers, and is connected.

        Args:
          worker: its index.
          leaves: whether it is still there, and ends.

        Raises:
          tf.errors.OpError: a ps was lost.
        """
        without = {worker}
        while True:
            try:
                self._connect(without)
            except tf.errors.OpError as error:
                # A worker was lost meanwhile, or this one again.
                self._cluster.failure_handler._validate_preemption_failure(error)
                time.sleep(_POLL_SECONDS)
            else:
                if not without:
                    return
                without = set()
            while leaves and self._answers(worker):
                time.sleep(_POLL_SECONDS)
            leaves = False
            while not self._answers(worker):
                time.sleep(_POLL_SECONDS)

    @functools.cached_property
    def _all(self) -> Any:
        """TensorFlow's cluster with all workers, as a ServerDef."""
        definition = tensorflow_server_pb2.ServerDef()
        definition.CopyFrom(self._cluster.failure_handler._server_def)
        self._workers(definition).update(enumerate(self._addresses))
        return definition

    def _answers(self, worker: int) -> bool:
        return identify(self._addresses[worker]) is Listener.SERVER

    def _connect(self, without: set[int]) -> None:
        """Connects the chief to all workers that answer, except some."""
        handler = self._cluster.failure_handler
        with handler._cluster_update_lock:
            definition = tensorflow_server_pb2.ServerDef()
            definition.CopyFrom(self._all)
            workers = self._workers(definition)
            for worker in list(workers):
                if worker in without or not self._answers(worker):
                    del workers[worker]
            # Its thread connects once more, and then wakes the threads that wait for a worker.
            handler._server_def = definition
            context.context().update_server_def(definition)

    def _workers(self, definition: Any) -> Any:
        """The addresses of the workers in a ServerDef, by their index."""
        job = tf.DeviceSpec.from_string(self._cluster.workers[0].device_name).job
        (tasks,) = [each.tasks for each in definition.cluster.job if each.name == job]
        return tasks
