"""`EpochCoordinator` hands the steps that Keras requests to one thread per worker.

    EpochCoordinator(strategy, …)     # before Keras asks for the strategy's coordinator
    model.fit(job.dataset(train_input), epochs=10)

A `ClusterCoordinator` schedules each function on any free worker. With a dataset of `job.dataset`,
each worker has a shard of its own, and the steps of an epoch go to the thread of the worker whose
shard they read. TensorFlow's own queue stays for everything else.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.data import sharding
from tfdist.strategies.parameter_server.steps import keras2
from tfdist.strategies.parameter_server.steps.asynchronous_epoch import AsynchronousEpoch
from tfdist.strategies.parameter_server.steps.departure import Departure
from tfdist.strategies.parameter_server.steps.epoch import Epoch, Logs
from tfdist.strategies.parameter_server.steps.marks import Marks
from tfdist.strategies.parameter_server.steps.reconnection import Reconnection
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.synchronous_epoch import SynchronousEpoch
from tfdist.strategies.parameter_server.steps.synchronous_functions import (
    Functions,
    Synchronous,
)
from tfdist.strategies.parameter_server.steps.worker_functions import Execution
from tfdist.strategies.parameter_server.steps.worker_thread import WorkerThread
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards

# On which the steps are counted.
_MARKS_DEVICE = "/job:ps/replica:0/task:0/device:CPU:0"


class EpochCoordinator(tf.distribute.coordinator.ClusterCoordinator):
    """A `ClusterCoordinator` whose epochs read each worker's shard.

    A strategy has one coordinator. Constructing another one, as Keras does repeatedly, returns the
    existing object and calls `__init__` on it again.

    Args:
      strategy: the strategy.
      packs_transfers: whether the transfers of a step are packed.
      synchronous: what synchronous steps need; None if steps are asynchronous.

    Attributes:
      before_step: called before training steps are requested, with their epoch and number.
      training_epoch: the current training epoch, or the last one; None before the first one.
    """

    def __new__(cls, strategy: PassesShards, **_: Any) -> EpochCoordinator:
        coordinator: EpochCoordinator = super().__new__(cls, strategy)
        return coordinator

    def __init__(
        self,
        strategy: PassesShards,
        *,
        packs_transfers: bool = True,
        synchronous: Synchronous | None = None,
    ) -> None:
        if hasattr(self, "synchronous"):
            return
        super().__init__(strategy)
        self.synchronous = synchronous
        self.before_step: Callable[[Epoch, int], None] | None = None
        self.packs_transfers = packs_transfers
        wait_for = Reconnection(self._cluster, strategy.workers).wait_for
        self._threads = [
            WorkerThread(each, wait_for, is_away=index in strategy.away)
            for index, each in enumerate(self._cluster.workers)
        ]
        self._leaving = threading.Lock()
        self._epoch: Epoch | None = None
        self.training_epoch: Epoch | None = None
        # The training steps of the epochs before that one.
        self._earlier_steps = 0
        # The functions of the workers are traced once, by the thread that calls Keras's `fit`.
        self._evaluation: Callable[[PerWorkerShards], Epoch] = partial(
            AsynchronousEpoch,
            threads=self._threads,
            execution_of=functools.cache(partial(Execution, strategy, packs=packs_transfers)),
        )
        self._training: Callable[[PerWorkerShards], Epoch] = self._evaluation
        if synchronous is not None:
            functions = partial(Functions, strategy, synchronous, packs=packs_transfers)
            self._training = partial(
                SynchronousEpoch,
                threads=self._threads,
                synchronous=synchronous,
                functions_of=functools.cache(functions),
            )
        self._start: tuple[int, tuple[int, ...]] | None = None
        self._first_steps: tuple[int, ...] = ()
        strategy.distribute_shards = self._distribute

    def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
        """Like TensorFlow's method, but a dataset of `job.dataset` becomes its shards."""
        if isinstance(dataset_fn, PerWorkerShards):
            return dataset_fn
        shards = sharding.shards_of(dataset_fn)
        if shards is None:
            return super().create_per_worker_dataset(dataset_fn)
        return self._distribute(shards)

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        """Like TensorFlow's method, but a step of an epoch goes to the worker of its shard.

        Raises:
          StopIteration: the first epoch of a dataset has ended; Keras learns its length from this.
        """
        if not (args and isinstance(args[0], Epoch)):
            return super().schedule(fn, args, kwargs)
        epoch, *rest = args
        # With `steps_per_execution`, Keras 2 passes the number of steps.
        steps = int(rest[0]) if rest else 1
        step = keras2.single_step(fn) if rest else fn.python_function
        self.request(epoch, step, steps)
        return Logs(epoch)

    def request(self, epoch: Epoch, step: Callable[[Any], Any], steps: int) -> None:
        """Requests steps of an epoch; see `Epoch.step`."""
        self._epoch = epoch
        if epoch.trains and epoch is not self.training_epoch:
            self._earlier_steps = self.steps_made
            self.training_epoch = epoch
            epoch.start_after(self._first_steps)
            self._first_steps = ()
        if epoch.steps_left is not None:
            # Keras 3 requests full executions, even if the last one passes the end of the epoch.
            steps = min(steps, epoch.steps_left)
            epoch.steps_left -= steps
        if epoch.trains and self.before_step is not None:
            self.before_step(epoch, steps)
        epoch.step(step, steps)

    @property
    def steps_made(self) -> int:
        """The number of training steps that are known to be made, over all epochs."""
        epoch = self.training_epoch
        return self._earlier_steps + (0 if epoch is None else epoch.new_steps)

    @property
    def progress(self) -> int:
        """The training steps and those of an evaluation. It may be read in any thread."""
        epoch = self._epoch
        return self.steps_made + (0 if epoch is None or epoch.trains else epoch.new_steps)

    def is_reconnecting(self, worker: int) -> bool:
        """Whether a worker was lost and TensorFlow is not connected to its replacement."""
        return self._threads[worker].is_reconnecting

    def let_leave(self, worker: int, min_workers: int) -> None:
        """Lets a worker leave if it asks for that and enough others stay."""
        departure = Departure(worker)
        if not departure.is_asked() or not self._threads[worker].takes_requests:
            return
        with self._leaving:
            if sum(thread.takes_requests for thread in self._threads) <= min_workers:
                return
            self._threads[worker].leave(departure.allow)

    def start_at(self, epochs: int, steps: Sequence[int], *, reads_on: bool) -> None:
        """Sets the position from which training resumes.

        Args:
          epochs: the number of completed epochs.
          steps: for each shard, the number of its steps in the next epoch; empty for none.
          reads_on: whether the workers skip the data of these epochs and steps.
        """
        if reads_on:
            self._start = epochs, tuple(steps)
        else:
            self._first_steps = tuple(steps)

    def join(self, to_end: bool = True) -> None:
        """Like TensorFlow's method, but also finishes the current epoch.

        Args:
          to_end: whether the epoch reads its data to the end. If False, it ends with the steps that
            are already requested.
        """
        if self._epoch is not None:
            self._epoch.finish(to_end)
            self._epoch.begin_next()
            self._epoch = None
        super().join()

    def _distribute(self, shards: sharding.Shards) -> PerWorkerShards:
        """The shards for Keras 3; Keras 2 passes them to `create_per_worker_dataset`."""
        is_asynchronous = self.synchronous is None or not shards.trains
        return PerWorkerShards(
            shards,
            len(self._threads),
            self._take_start,
            self._new_epoch,
            Marks(len(shards.makers), _MARKS_DEVICE) if is_asynchronous else None,
        )

    def _take_start(self) -> tuple[int, tuple[int, ...]]:
        """Returns the position of `start_at` and resets it to the beginning."""
        start, self._start = self._start, None
        return start or (0, ())

    def _new_epoch(self, shards: PerWorkerShards) -> Epoch:
        return self._training(shards) if shards.trains else self._evaluation(shards)
