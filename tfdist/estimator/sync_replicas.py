"""Synchronous updates on parameter servers, for sessions and Estimators.

    momentum = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer = SyncReplicasOptimizer(momentum, topology, device="/job:chief/task:0")
    train_op = optimizer.minimize(loss, global_step=global_step)
    hook = SyncReplicasHook([optimizer], is_chief=True)

This is the method of "Revisiting Distributed Synchronous SGD" (Chen et al. 2016, arXiv:1604.00981):
an update uses the first gradients to arrive, and drops the late gradients of backup workers.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError, log
from tfdist.estimator.optimizers import Wrapper
from tfdist.estimator.sessions import not_wrapped
from tfdist.strategies.base import Topology

# The last token, which ends the training.
_END = -1
_JOIN_SECONDS = 5.0


class SyncReplicasOptimizer(Wrapper):
    """Like `tf.compat.v1.train.SyncReplicasOptimizer`, with a queue of tokens for each worker.

    TensorFlow's optimizer has one queue for all workers. A fast worker can take the old tokens of a
    slow one, and then computes gradients that are dropped, or two gradients for one update. With
    one queue per worker, a worker waits for an update that it has not yet contributed to, and takes
    the newest token.

    Args:
      optimizer: the v1 optimizer that applies the averaged gradients.
      topology: has a shard for each worker, that of the chief first. An update uses `num_replicas`
        gradients; further workers are backups.
      device: the device of this worker's own step counter.

    Attributes, after `apply_gradients`:
      global_step: the variable that counts the updates; None before.
      counts: how many gradients were contributed, how many of them were dropped, and whether the
        training has ended; int64, shape [3]. Checkpoints do not contain it.
      reset_op: the op that starts the counts and the accumulators at the cluster's step, on the
        chief.
      start_op: the op that starts this worker at the cluster's step, without the tokens of an
        earlier session.
      sync_op: the op that makes one update, on the chief.
      end_op: the op that ends the other workers' training, on the chief.
    """

    def __init__(
        self, optimizer: tf.compat.v1.train.Optimizer, topology: Topology, device: str
    ) -> None:
        super().__init__(optimizer, "sync_replicas")
        self._topology = topology
        self._device = device
        self.global_step: Any = None

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """Returns the op that contributes this worker's gradients and waits for the next update.

        Raises:
          ValueError: there is no gradient, or no global step, which detects stale gradients.
        """
        pairs = [
            (gradient, variable) for gradient, variable in grads_and_vars if gradient is not None
        ]
        if not pairs:
            raise ValueError("grads_and_vars: received no gradient; accepted: at least one.")
        if global_step is None:
            raise ValueError(
                "global_step: received None; accepted: the variable that counts the updates."
            )
        self.global_step = global_step
        # The ops that only the chief runs must not inherit the control dependencies of a worker's
        # step, such as updates of moving statistics, which read a batch.
        with tf.control_dependencies(None):
            self._make_variables()
            accumulators = [_accumulator(*pair) for pair in pairs]
            averages = [
                (self._take(accumulator, variable), variable)
                for accumulator, (_, variable) in zip(accumulators, pairs, strict=True)
            ]
            with tf.device(global_step.device):
                queues = [
                    tf.queue.FIFOQueue(
                        -1,
                        [global_step.dtype.base_dtype],
                        [()],
                        shared_name=f"sync_token_q_{worker}",
                    )
                    for worker in range(self._topology.num_shards)
                ]
                own = queues[self._topology.shard]
                self._make_starts(accumulators, own)
                update_op = self._optimizer.apply_gradients(averages, global_step)
                self.sync_op = self._release(update_op, queues)
                self.end_op = self._end_all(queues)
        contributions = []
        # A contribution is counted before it can be a part of an update.
        counted = [self._count(pairs[0][0])]
        for accumulator, (gradient, variable) in zip(accumulators, pairs, strict=True):
            with tf.device(variable.device), tf.control_dependencies(counted):
                contributions.append(self._contribute(accumulator, gradient, variable))
            counted = []
        with tf.device(global_step.device), tf.control_dependencies(contributions):
            # Only this worker dequeues from it, so the tokens of `size` are still there.
            token = own.dequeue_many(tf.maximum(own.size(), 1))[-1]
        return self._local_step.assign(token)

    def _make_variables(self) -> None:
        def zeros(name: str, shape: list[int], collections: list[str]) -> tf.Variable:
            return tf.compat.v1.Variable(
                tf.zeros(shape, tf.int64),
                trainable=False,
                collections=collections,
                name=name,
                use_resource=True,
            )

        with tf.device(self._device):
            local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
            self._local_step = zeros("sync_rep_local_step", [], local)
        with tf.device(self.global_step.device):
            self.counts = zeros("sync_rep_counts", [3], [])

    def _make_starts(self, accumulators: Iterable[Any], own: tf.queue.QueueBase) -> None:
        starts = []
        for accumulator in accumulators:
            with tf.device(accumulator.accumulator_ref.device):
                starts.append(accumulator.set_global_step(self.global_step.read_value()))
        self.reset_op = tf.group(self.counts.initializer, *starts)
        with tf.control_dependencies([own.dequeue_many(own.size())]):
            self.start_op = self._local_step.assign(self.global_step.read_value())

    def _take(self, accumulator: Any, variable: tf.Variable) -> Any:
        with tf.device(variable.device):
            if isinstance(accumulator, tf.compat.v1.SparseConditionalAccumulator):
                total = accumulator.take_indexed_slices_grad(self._topology.num_replicas)
                # The last row is that of `_with_count`.
                count = tf.reshape(total.values[-1], [-1])[0]
                return tf.IndexedSlices(
                    total.values[:-1] / count, total.indices[:-1], tf.shape(variable)
                )
            return accumulator.take_grad(self._topology.num_replicas)

    def _count(self, gradient: Any) -> tf.Operation:
        """Counts a contribution when its first gradient is there, and whether it is stale."""
        tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        with tf.device(self.global_step.device), tf.control_dependencies([tensor]):
            is_stale = self.global_step.read_value() > self._local_step.read_value()
            return self.counts.assign_add(tf.stack([1, tf.cast(is_stale, tf.int64), 0]))

    def _contribute(self, accumulator: Any, gradient: Any, variable: tf.Variable) -> tf.Operation:
        """Adds a gradient to its accumulator, which drops a stale one."""
        if isinstance(gradient, tf.IndexedSlices):
            return accumulator.apply_indexed_slices_grad(
                _with_count(gradient, variable), local_step=self._local_step
            )
        return accumulator.apply_grad(gradient, local_step=self._local_step)

    def _release(self, update_op: tf.Operation, queues: list[Any]) -> tf.Operation:
        """Sends a token to each worker; to the chief last, because it may then end the session."""
        with tf.control_dependencies([update_op]):
            token = tf.identity(self.global_step.read_value())
            others = [queue.enqueue(token) for queue in queues[1:]]
        with tf.control_dependencies(others):
            return queues[0].enqueue(token)

    def _end_all(self, queues: list[Any]) -> tf.Operation:
        """Ends the other workers' training, including workers that have not yet started."""
        with tf.control_dependencies([self.counts.assign_add([0, 0, 1])]):
            token = tf.constant(_END, self.global_step.dtype.base_dtype)
            return tf.group(*(queue.enqueue(token) for queue in queues[1:]))


def _accumulator(gradient: Any, variable: tf.Variable) -> Any:
    name = f"{variable.name}/grad_accum"
    with tf.device(variable.device):
        if isinstance(gradient, tf.IndexedSlices):
            # A mean would divide each row by the number of the workers that have sent it.
            return tf.compat.v1.SparseConditionalAccumulator(
                gradient.dtype, shared_name=name, reduction_type="SUM"
            )
        return tf.compat.v1.ConditionalAccumulator(
            gradient.dtype, shape=variable.shape, shared_name=name
        )


def _with_count(gradient: tf.IndexedSlices, variable: tf.Variable) -> tf.IndexedSlices:
    """A sparse gradient for an accumulator, with a row of ones after the last row of the variable.

    The sum of these rows is the number of gradients. An accumulator needs ascending indices without
    duplicates.
    """
    order = tf.argsort(gradient.indices)
    indices, positions = tf.unique(tf.gather(gradient.indices, order))
    values = tf.math.segment_sum(tf.gather(gradient.values, order), positions)
    rows = tf.cast(tf.shape(variable)[:1], indices.dtype)
    return tf.IndexedSlices(
        tf.concat([values, tf.ones([1, *variable.shape[1:]], values.dtype)], 0),
        tf.concat([indices, rows], 0),
    )


class SyncReplicasHook(tf.compat.v1.train.SessionRunHook):
    """Starts a worker at the cluster's step; on the chief, applies the updates in a thread.

    Every worker's session needs it. With TensorFlow's own hook, the end of the session waits two
    minutes for a thread that waits for further gradients.

    Args:
      optimizers: all optimizers of this task; the session's graph has one of them.
      is_chief: whether this worker is the chief.
    """

    def __init__(self, optimizers: Sequence[SyncReplicasOptimizer], is_chief: bool) -> None:
        self._optimizers = optimizers
        self._is_chief = is_chief

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        found = [
            each
            for each in self._optimizers
            if each.global_step is not None and each.global_step.graph is graph
        ]
        if not found:
            raise not_wrapped("parameter_server with --sync")
        if len(found) > 1:
            raise UsageError(
                "optimizer",
                received="several synchronous optimizers in one graph",
                accepted="one, under parameter_server with --sync",
                remedy="Minimize the sum of the losses with one optimizer, or train a wide and "
                "deep model with --strategy=multi_worker_mirrored or horovod.",
            )
        self._optimizer = optimizer = found[0]
        self._counts = optimizer.counts.read_value()
        self._is_reset = tf.compat.v1.is_variable_initialized(optimizer.counts)
        self._local_step = optimizer._local_step.read_value()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._is_chief:
            session.run(self._optimizer.reset_op)
        while not session.run(self._is_reset):
            time.sleep(0.1)  # The chief initializes it.
        session.run(self._optimizer.start_op)
        if self._is_chief:
            # Not a thread of the coordinator, because the coordinator would wait for its end.
            updating = threading.Thread(
                target=self._keep_updating, args=(session, coord), daemon=True
            )
            updating.start()
            # At exit, Python aborts the process if a daemon thread is inside TensorFlow.
            atexit.register(updating.join, _JOIN_SECONDS)
        elif session.run(self._counts)[-1]:
            coord.request_stop()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._is_chief and run_context.session.run(self._local_step) == _END:
            run_context.request_stop()

    def end(self, session: tf.compat.v1.Session) -> None:
        if self._is_chief:
            contributed, dropped, _ = session.run(self._counts)
            session.run(self._optimizer.end_op)
            log(f"{dropped} of {contributed} gradients were stale and dropped")

    def _keep_updating(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        try:
            while not coord.should_stop():
                session.run(self._optimizer.sync_op)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            pass  # The training thread gets this error too, and creates a new session.
        except Exception as error:
            if not coord.should_stop():
                coord.request_stop(error)
                # Otherwise this worker would wait forever for an update.
                session.close()
