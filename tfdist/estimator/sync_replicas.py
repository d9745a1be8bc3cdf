"""Synchronous updates on parameter servers, for sessions and Estimators.

    optimizer = SyncReplicasOptimizer(
        tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
        replicas_to_aggregate=2, total_num_replicas=3, worker=0, device="/job:chief/task:0",
    )
    train_op = optimizer.minimize(loss, global_step=global_step)
    hook = SyncReplicasHook(lambda: optimizer, is_chief=True)

This is the method of "Revisiting Distributed Synchronous SGD" (Chen et al. 2016, arXiv:1604.00981):
an update uses the first gradients to arrive, and drops the late gradients of backup workers.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError, log
from tfdist.estimator.optimizers import Wrapper
from tfdist.estimator.sessions import not_wrapped

_COLLECTION = "tfdist_sync_replicas"

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
      opt: the v1 optimizer that applies the averaged gradients.
      replicas_to_aggregate: the number of gradients per update.
      total_num_replicas: the number of workers; those beyond `replicas_to_aggregate` are backups.
      worker: the index of this worker; 0 is the chief.
      device: the device of this worker's own step counter.

    Attributes:
      global_step: the variable that counts the updates; None before `apply_gradients`.
      sync_op: the op that makes one update, on the chief.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        *,
        replicas_to_aggregate: int,
        total_num_replicas: int,
        worker: int,
        device: str,
    ) -> None:
        super().__init__(opt, "sync_replicas")
        self._gradients_per_update = replicas_to_aggregate
        self._num_workers = total_num_replicas
        self._worker = worker
        self._device = device
        self.global_step: Any = None
        # (accumulator, device) pairs.
        self._accumulators: list[tuple[Any, str]] = []

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
            accumulators = [self._make_accumulator(*pair) for pair in pairs]
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
                    for worker in range(self._num_workers)
                ]
                own = queues[self._worker]
                self._stale_tokens = own.dequeue_many(own.size())
                update_op = self._optimizer.apply_gradients(averages, global_step)
                self.sync_op = self._release(update_op, queues)
                self._end_op = self._end_all(queues)
        contributions = [
            self._contribute(accumulator, *pair)
            for accumulator, pair in zip(accumulators, pairs, strict=True)
        ]
        with tf.device(global_step.device), tf.control_dependencies(contributions):
            # Only this worker dequeues from it, so the tokens of `size` are still there.
            token = own.dequeue_many(tf.maximum(own.size(), 1))[-1]
        return self._local_step.assign(token)

    def _make_variables(self) -> None:
        def counter(name: str, collection: str) -> tf.Variable:
            return tf.compat.v1.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                collections=[collection],
                name=name,
                use_resource=True,
            )

        with tf.device(self._device):
            self._local_step = counter(
                "sync_rep_local_step", tf.compat.v1.GraphKeys.LOCAL_VARIABLES
            )
        # Counters of the whole cluster. Checkpoints do not contain them; the chief sets them to 0.
        with tf.device(self.global_step.device):
            self.contributed = counter("sync_rep_contributed", _COLLECTION)
            self.dropped = counter("sync_rep_dropped", _COLLECTION)
            self._ended = counter("sync_rep_ended", _COLLECTION)

    def _make_accumulator(self, gradient: Any, variable: tf.Variable) -> Any:
        name = f"{variable.name}/grad_accum"
        with tf.device(variable.device):
            if isinstance(gradient, tf.IndexedSlices):
                # A mean would divide each row by the number of the workers that have sent it.
                accumulator = tf.compat.v1.SparseConditionalAccumulator(
                    gradient.dtype, shared_name=name, reduction_type="SUM"
                )
            else:
                accumulator = tf.compat.v1.ConditionalAccumulator(
                    gradient.dtype, shape=variable.shape, shared_name=name
                )
        self._accumulators.append((accumulator, variable.device))
        return accumulator

    def _take(self, accumulator: Any, variable: tf.Variable) -> Any:
        with tf.device(variable.device):
            if isinstance(accumulator, tf.compat.v1.SparseConditionalAccumulator):
                total = accumulator.take_indexed_slices_grad(self._gradients_per_update)
                # The last row is that of `_with_count`.
                count = tf.reshape(total.values[-1], [-1])[0]
                return tf.IndexedSlices(
                    total.values[:-1] / count, total.indices[:-1], tf.shape(variable)
                )
            return accumulator.take_grad(self._gradients_per_update)

    def _contribute(self, accumulator: Any, gradient: Any, variable: tf.Variable) -> tf.Operation:
        """Adds a gradient to its accumulator, which drops a stale one; counts the first one."""
        counts = []
        if (accumulator, variable.device) == self._accumulators[0]:
            tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            with tf.device(self.global_step.device), tf.control_dependencies([tensor]):
                is_stale = self.global_step.read_value() > self._local_step.read_value()
                counts = [
                    self.contributed.assign_add(1),
                    self.dropped.assign_add(tf.cast(is_stale, tf.int64)),
                ]
        with tf.device(variable.device), tf.control_dependencies(counts):
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
        with tf.control_dependencies([self._ended.assign(1)]):
            token = tf.constant(_END, self.global_step.dtype.base_dtype)
            return tf.group(*(queue.enqueue(token) for queue in queues[1:]))


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
      find: returns the optimizer of the session's graph; None if there is none.
      is_chief: whether this worker is the chief.
    """

    def __init__(self, find: Callable[[], SyncReplicasOptimizer | None], is_chief: bool) -> None:
        self._find = find
        self._is_chief = is_chief

    def begin(self) -> None:
        optimizer, graph = self._find(), tf.compat.v1.get_default_graph()
        if optimizer is None or getattr(optimizer.global_step, "graph", None) is not graph:
            raise not_wrapped("parameter_server with --sync")
        self._optimizer = optimizer
        counters = tf.compat.v1.get_collection(_COLLECTION)
        if len(counters) != 3:
            raise UsageError(
                "optimizer",
                received="several synchronous optimizers in one graph",
                accepted="one, under parameter_server with --sync",
                remedy="Minimize the sum of the losses with one optimizer, or train a wide and "
                "deep model with --strategy=multi_worker_mirrored or horovod.",
            )
        self._counts = [counter.read_value() for counter in counters]
        self._are_initialized = tf.reduce_all(
            [tf.compat.v1.is_variable_initialized(counter) for counter in counters]
        )
        self._initialize_counters = tf.group(*(counter.initializer for counter in counters))
        self._start_accumulating = []
        for accumulator, device in optimizer._accumulators:
            with tf.device(device):
                self._start_accumulating.append(
                    accumulator.set_global_step(optimizer.global_step.read_value())
                )
        self._discard_tokens = optimizer._stale_tokens
        self._update_local_step = optimizer._local_step.assign(optimizer.global_step.read_value())
        self._local_step = optimizer._local_step.read_value()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._is_chief:
            session.run([self._start_accumulating, self._initialize_counters])
        while not session.run(self._are_initialized):
            time.sleep(0.1)  # The chief initializes them.
        session.run(self._discard_tokens)
        session.run(self._update_local_step)
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
            session.run(self._optimizer._end_op)
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
