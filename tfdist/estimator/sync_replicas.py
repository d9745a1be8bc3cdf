"""Synchronous updates on parameter servers, from sessions and Estimators.

    optimizer = SyncReplicasOptimizer(
        tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
        replicas_to_aggregate=2, total_num_replicas=3, worker=0, device="/job:chief/task:0",
    )
    train_op = optimizer.minimize(loss, global_step=global_step)
    hook = optimizer.make_session_run_hook(is_chief=True)

Revisiting Distributed Synchronous SGD (Chen et al. 2016, arXiv:1604.00981): an update takes the
first gradients that come, and those that come too late, of backup workers, are dropped.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.errors import log
from tfdist.upstream import estimator_deprecation

_COLLECTION = "tfdist_sync_replicas"

# The token that says that no other will come.
_END = -1
_JOIN_SECONDS = 5.0


class SyncReplicasOptimizer(tf.compat.v1.train.SyncReplicasOptimizer):
    """`tf.compat.v1.train.SyncReplicasOptimizer` with a queue of tokens for each worker.

    TensorFlow's own has one queue for all. A fast worker then takes the tokens of a slow one, which
    are old: it computes gradients that are dropped at once, or two for one update. Here a worker
    waits for an update that it has not yet contributed to, and takes the newest.

    Args:
      opt: the v1 optimizer that applies the averaged gradients.
      replicas_to_aggregate: gradients behind one update.
      total_num_replicas: workers, of which those beyond `replicas_to_aggregate` are backups.
      worker: which of them this one is; 0 is the chief.
      device: this worker's, for what it alone counts.
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
        with estimator_deprecation.silence():
            super().__init__(opt, replicas_to_aggregate, total_num_replicas)
        self._worker = worker
        self._device = device

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """Returns the op that contributes this worker's gradients and waits for the next update.

        Raises:
          ValueError: there is no gradient, or no global step to tell a stale one by.
        """
        pairs = [
            (gradient, variable) for gradient, variable in grads_and_vars if gradient is not None
        ]
        if not pairs:
            raise ValueError("grads_and_vars: received no gradient; accepted: at least one.")
        if global_step is None:
            raise ValueError(
                "global_step: received None; accepted: the variable that counts updates."
            )
        self._global_step = global_step
        # What the chief alone runs must not wait for what a worker's step is to wait for, such as
        # the updates of moving statistics, which read a batch.
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
                    for worker in range(self._total_num_replicas)
                ]
                own = queues[self._worker]
                self._stale_tokens = own.dequeue_many(own.size())
                update_op = self._opt.apply_gradients(averages, global_step)
                self.sync_op = self._release(update_op, queues)
                self._end_op = self._release_for_good(queues)
        contributions = [
            self._contribute(accumulator, *pair)
            for accumulator, pair in zip(accumulators, pairs, strict=True)
        ]
        with tf.device(global_step.device), tf.control_dependencies(contributions):
            # Only this worker takes from it, so that what it holds now will be there.
            token = own.dequeue_many(tf.maximum(own.size(), 1))[-1]
        self._gradients_applied = True
        return self._local_step.assign(token)

    def make_session_run_hook(
        self, is_chief: bool, num_tokens: int = 0
    ) -> tf.compat.v1.train.SessionRunHook:
        """The hook that every worker's session needs; it keeps the updates going on the chief.

        Raises:
          ValueError: `num_tokens` is not 0: with tokens at the start a worker would run ahead.
        """
        if num_tokens:
            raise ValueError(f"num_tokens: received {num_tokens}; accepted: 0.")
        return SyncReplicasHook(self, is_chief)

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
        # Over the cluster; no part of a checkpoint, and set to 0 by the chief alone.
        with tf.device(self._global_step.device):
            self.contributed = counter("sync_rep_contributed", _COLLECTION)
            self.dropped = counter("sync_rep_dropped", _COLLECTION)
            self._ended = counter("sync_rep_ended", _COLLECTION)

    def _make_accumulator(self, gradient: Any, variable: tf.Variable) -> Any:
        name = f"{variable.name}/grad_accum"
        with tf.device(variable.device):
            if isinstance(gradient, tf.IndexedSlices):
                accumulator = tf.compat.v1.SparseConditionalAccumulator(
                    gradient.dtype, shared_name=name
                )
            else:
                accumulator = tf.compat.v1.ConditionalAccumulator(
                    gradient.dtype, shape=variable.shape, shared_name=name
                )
        self._accumulator_list.append((accumulator, variable.device))
        return accumulator

    def _take(self, accumulator: Any, variable: tf.Variable) -> Any:
        with tf.device(variable.device):
            if isinstance(accumulator, tf.compat.v1.SparseConditionalAccumulator):
                return accumulator.take_indexed_slices_grad(self._replicas_to_aggregate)
            return accumulator.take_grad(self._replicas_to_aggregate)

    def _contribute(self, accumulator: Any, gradient: Any, variable: tf.Variable) -> tf.Operation:
        """Hands a gradient over, which drops it if it is stale; counts it if it is the first."""
        counts = []
        if (accumulator, variable.device) == self._accumulator_list[0]:
            tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            with tf.device(self._global_step.device), tf.control_dependencies([tensor]):
                is_stale = self._global_step.read_value() > self._local_step.read_value()
                counts = [
                    self.contributed.assign_add(1),
                    self.dropped.assign_add(tf.cast(is_stale, tf.int64)),
                ]
        with tf.device(variable.device), tf.control_dependencies(counts):
            if isinstance(gradient, tf.IndexedSlices):
                return accumulator.apply_indexed_slices_grad(gradient, local_step=self._local_step)
            return accumulator.apply_grad(gradient, local_step=self._local_step)

    def _release(self, update_op: tf.Operation, queues: list[Any]) -> tf.Operation:
        """Tells each worker of the update; the chief last, because it may then end the session."""
        with tf.control_dependencies([update_op]):
            token = tf.identity(self._global_step.read_value())
            others = [queue.enqueue(token) for queue in queues[1:]]
        with tf.control_dependencies(others):
            return queues[0].enqueue(token)

    def _release_for_good(self, queues: list[Any]) -> tf.Operation:
        """Tells the other workers that the chief has ended, those that are yet to come included."""
        with tf.control_dependencies([self._ended.assign(1)]):
            token = tf.constant(_END, self._global_step.dtype.base_dtype)
            return tf.group(*(queue.enqueue(token) for queue in queues[1:]))


class SyncReplicasHook(tf.compat.v1.train.SessionRunHook):
    """Starts a worker at the cluster's step, and on the chief applies update after update.

    TensorFlow's own hook makes the end of the session wait two minutes for the thread that waits
    for gradients, which come no more.
    """

    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool) -> None:
        self._optimizer = optimizer
        self._is_chief = is_chief

    def begin(self) -> None:
        optimizer = self._optimizer
        if not optimizer._gradients_applied:
            raise ValueError("SyncReplicasOptimizer.apply_gradients comes before its hook.")
        counters = tf.compat.v1.get_collection(_COLLECTION)
        if len(counters) != 3:
            raise ValueError(
                "The graph has several synchronous optimizers; accepted: one, because one update "
                "releases the workers. Minimize the sum of the losses."
            )
        self._counts = [counter.read_value() for counter in counters]
        self._are_counting = tf.reduce_all(
            [tf.compat.v1.is_variable_initialized(counter) for counter in counters]
        )
        self._start_counting = tf.group(*(counter.initializer for counter in counters))
        self._start_accumulating = []
        for accumulator, device in optimizer._accumulator_list:
            with tf.device(device):
                self._start_accumulating.append(
                    accumulator.set_global_step(optimizer._global_step.read_value())
                )
        self._forget = optimizer._stale_tokens
        self._catch_up = optimizer._local_step.assign(optimizer._global_step.read_value())
        self._local_step = optimizer._local_step.read_value()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._is_chief:
            session.run([self._start_accumulating, self._start_counting])
        while not session.run(self._are_counting):
            time.sleep(0.1)  # The chief is about to.
        session.run(self._forget)
        session.run(self._catch_up)
        if self._is_chief:
            # Not one of the coordinator's threads, for whose ends it would wait.
            updating = threading.Thread(
                target=self._keep_updating, args=(session, coord), daemon=True
            )
            updating.start()
            # Python ends a daemon thread that is within TensorFlow by aborting the process.
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
            pass  # The training's own thread sees it too, and makes a new session.
        except Exception as error:
            if not coord.should_stop():
                coord.request_stop(error)
                # Else this worker would wait for an update for ever.
                session.close()
