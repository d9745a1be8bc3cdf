"""Epochs under the parameter-server strategy: each worker reads its own shard once per epoch.

    EpochCoordinator(strategy)     # before Keras asks for the strategy's coordinator
    model.fit(job.dataset(train_input), epochs=10)

A `ClusterCoordinator` schedules each step on any free worker, so with finite shards a fast worker
runs out of data before the others. An `EpochCoordinator` schedules runs of several steps. A run on
an exhausted shard ends early, and the epoch ends when the run of every worker has ended early.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator.values import (
    PerWorkerDistributedIterator,
    PerWorkerValues,
)

from tfdist.data import sharding
from tfdist.strategies.parameter_server import keras2_steps, worker_functions
from tfdist.strategies.parameter_server.epoch import Epoch, Run
from tfdist.strategies.parameter_server.partitions import Partitioner
from tfdist.strategies.parameter_server.placement import place_by_bytes
from tfdist.strategies.parameter_server.run_length import RunLength
from tfdist.strategies.parameter_server.synchronous import Synchronous, SynchronousEpoch
from tfdist.strategies.parameter_server.worker_functions import RunOf
from tfdist.upstream import dataset_arrays


class PassesShards(tf.distribute.ParameterServerStrategy):
    """A `ParameterServerStrategy` whose coordinator distributes a dataset of `job.dataset`."""

    def __init__(
        self,
        cluster_resolver: Any,
        variable_partitioner: Any,
        *,
        heartbeat_timeout: float,
        packs_transfers: bool,
        synchronous: Synchronous | None = None,
    ) -> None:
        self.heartbeat_timeout = heartbeat_timeout
        self.synchronous = synchronous
        self.packs_transfers = packs_transfers
        self.num_workers = len(cluster_resolver.cluster_spec().job_tasks("worker"))
        # With Keras 3: the partitioner of layers that can use a variable in parts, and the result.
        self.layer_partitioner: Partitioner | None = None
        self.split_variables: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(cluster_resolver, variable_partitioner)
        self.placement = place_by_bytes(self, len(cluster_resolver.cluster_spec().job_tasks("ps")))

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        shards = sharding.shards_of(dataset)
        if shards is not None:
            return DistributedShards(self, shards)
        return super().experimental_distribute_dataset(dataset, options)


class DistributedShards:
    """A dataset of `job.dataset`, distributed over the workers.

    Keras 2 passes it to the coordinator. Keras 3 iterates over it: each `iter` is an epoch, and all
    epochs use the same datasets on the workers.
    """

    def __init__(self, strategy: PassesShards, shards: sharding.Shards) -> None:
        self.shards = shards
        # The number of steps per epoch that the user has set; None if Keras does not know it.
        self.steps_per_epoch: int | None = None
        self._strategy = strategy
        self._per_worker: PerWorkerShards | None = None

    def __iter__(self) -> Epoch:
        if self._per_worker is None:
            coordinator = EpochCoordinator(self._strategy)
            self._per_worker = coordinator.create_per_worker_dataset(self)
            self._per_worker.always_raises_at_end = True
            self._per_worker.steps_per_epoch = self.steps_per_epoch
        return iter(self._per_worker)


class EpochCoordinator(tf.distribute.coordinator.ClusterCoordinator):
    """A `ClusterCoordinator` that reads each worker's shard to its end in every epoch."""

    def __init__(self, strategy: PassesShards) -> None:
        # A strategy has one coordinator. Constructing another one, as Keras does repeatedly,
        # returns the existing object and calls `__init__` on it again.
        if not hasattr(self, "_runs"):
            super().__init__(strategy)
            self.num_workers = strategy.num_workers
            self.heartbeat_timeout = strategy.heartbeat_timeout
            self._epoch: Epoch | None = None
            # By `tf.function` of Keras, the function of one step; by that and the spec of an
            # iterator, the run and its concrete function.
            self._step_functions: dict[Any, Callable[[Any], Any]] = {}
            self._runs: dict[tuple[Callable[[Any], Any], Any], tuple[RunOf, Any]] = {}
            # Workers that an epoch ended without. Later epochs do not wait for them until they
            # make a step.
            self.lost: set[int] = set()
            # Called before training steps are requested, with their epoch and number.
            self.before_step: Callable[[Epoch, int], None] | None = None
            self._start: tuple[int, tuple[int, ...]] | None = None

    def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
        """As TensorFlow's; a dataset of `job.dataset` becomes one shard per worker."""
        is_distributed = isinstance(dataset_fn, DistributedShards)
        shards = dataset_fn.shards if is_distributed else sharding.shards_of(dataset_fn)
        if shards is None:
            return super().create_per_worker_dataset(dataset_fn)

        create = super().create_per_worker_dataset
        distribute = self.strategy.distribute_datasets_from_function
        spec = shards.local.element_spec
        with dataset_arrays.as_inputs():
            datasets = [
                create(partial(distribute, worker_functions.shard(make, spec)))
                for make in shards.makers
            ]
        return PerWorkerShards(self, shards, [dataset._dataset_fn for dataset in datasets])

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        """As TensorFlow's; a step of an epoch is part of a run, and may find no data.

        Raises:
          StopIteration: the first epoch of a dataset has ended; Keras learns its length from this.
        """
        if not (args and isinstance(args[0], Epoch)):
            return super().schedule(fn, args, kwargs)
        epoch, *rest = args
        # With `steps_per_execution`, Keras 2 passes the number of steps.
        steps = int(rest[0]) if rest else 1
        if fn not in self._step_functions:
            step = keras2_steps.single_step(fn) if rest else fn.python_function
            self._step_functions[fn] = step
        return self.request(epoch, self._step_functions[fn], steps)

    def request(self, epoch: Epoch, step: Callable[[Any], Any], steps: int) -> Any:
        """Requests steps of an epoch; see `Epoch.step`."""
        self._epoch = epoch
        if epoch.steps_left is not None:
            # Keras 3 requests full executions, even if the last one passes the end of the epoch.
            steps = min(steps, epoch.steps_left)
            epoch.steps_left -= steps
        if epoch.trains and self.before_step is not None:
            self.before_step(epoch, steps)
        return epoch.step(step, steps)

    def start_at(self, epochs: int, steps: Sequence[int]) -> None:
        """Sets the position from which training resumes.

        Args:
          epochs: the number of completed epochs.
          steps: for each worker, the number of its steps in the next epoch; empty for none.
        """
        self._start = epochs, tuple(steps)

    def take_start(self) -> tuple[int, tuple[int, ...]]:
        """Returns the position of `start_at` and resets it to the beginning."""
        start, self._start = self._start, None
        return start or (0, ())

    def schedule_run(
        self, step: Callable[[Any], Any], iterators: Any, steps: int, done: Callable[[Run], None]
    ) -> None:
        """Schedules a run on any free worker.

        TensorFlow's `schedule` returns a value that only one thread can wait for, so this schedules
        a Python function, which fetches the results in the thread of its worker.

        Args:
          step: makes one step; takes an iterator and returns the logs.
          iterators: the iterators of the workers.
          steps: the maximum number of steps.
          done: called with the result in a thread of the worker.
        """
        key = step, iterators._values[0]._type_spec
        if key not in self._runs:
            self._runs[key] = self._traced(*key)
        run, function = self._runs[key]
        cancellation = self._cluster.closure_queue._cancellation_mgr
        limit = tf.constant(steps)

        def run_on_worker(iterator: Any) -> None:
            numbers = cancellation.get_cancelable_function(function)(iterator, limit).numpy()
            worker, made, seconds, logs = run.unpacked(numbers)
            done(Run(worker, steps, made, seconds, logs))

        self._cluster.schedule(run_on_worker, (iterators,), None)

    def _traced(self, step: Callable[[Any], Any], iterator_spec: Any) -> tuple[RunOf, Any]:
        """A run, and its concrete function."""
        run = RunOf(step, packs=self.strategy.packs_transfers)
        extended = self.strategy.extended
        # Keras creates variables and runs replicas while it traces, which TensorFlow allows only
        # in functions that it schedules.
        with self.strategy.scope():
            extended._being_scheduled = True
            try:
                limit = tf.TensorSpec([], tf.int32)
                return run, run.function.get_concrete_function(iterator_spec, limit)
            finally:
                extended._being_scheduled = False

    def join(self, to_end: bool = True) -> None:
        """As TensorFlow's; also finishes the current epoch.

        Args:
          to_end: whether the epoch reads its data to the end. If False, it ends with the steps that
            are already scheduled.
        """
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.finish(to_end)
            # With steps_per_epoch, Keras 3 continues with this iterator in the next epoch.
            epoch.steps_left = epoch.steps_per_epoch
        super().join()


class PerWorkerShards:
    """The datasets on the workers; each `iter` is an epoch."""

    def __init__(
        self, coordinator: EpochCoordinator, shards: sharding.Shards, functions: Sequence[Any]
    ) -> None:
        self.coordinator = coordinator
        self.trains = shards.trains
        self.element_spec = shards.local.element_spec
        self.runs_to_end = False
        # Whether every epoch ends with StopIteration, as Keras 3 needs it; otherwise only the
        # first one does.
        self.always_raises_at_end = False
        self.steps_per_epoch: int | None = None
        self.length = RunLength(coordinator.num_workers)
        # The logs of the newest finished run with data (or of the first run if none had data).
        self.logs: Any = None
        # The same for Keras 3, which reads the returned dict again at the end of the epoch.
        self.live_logs: dict[str, Any] = {}
        # By worker, the steps that the iterators of this epoch have skipped at its beginning.
        self.skipped: tuple[int, ...] = ()
        # By worker, the steps of the last epoch; empty until an epoch has ended.
        self.steps_of_epoch: tuple[int, ...] = ()
        # By worker, the concrete function that makes its dataset.
        self.dataset_functions = functions
        self._synchronous_iterators = 0
        self._datasets: Any = None
        self._iterator_spec: Any = None

    def __iter__(self) -> Epoch:
        synchronous = self.coordinator.strategy.synchronous
        if synchronous is not None and self.trains:
            return SynchronousEpoch(self, synchronous)
        return Epoch(self)

    @property
    def iterator_spec(self) -> Any:
        """The `tf.TypeSpec` of the iterators on the workers."""
        dataset = self.dataset_functions[0].structured_outputs
        return input_lib.get_iterator_spec_from_dataset(self.coordinator.strategy, dataset)

    def next_iterator(self) -> tuple[int, int]:
        """For a synchronous epoch, the number of its iterators, from 1, and its first step."""
        epochs, skipped = self.coordinator.take_start()
        self._synchronous_iterators += epochs + 1
        return self._synchronous_iterators, max(skipped, default=0)

    def set_logs(self, logs: Any) -> None:
        """Stores the logs of a run."""
        self.logs = logs
        if isinstance(logs, dict):
            self.live_logs.update(logs)

    def iterators(self) -> Any:
        """Creates iterators on the workers, over datasets that all epochs share.

        TensorFlow's `iter` creates new datasets as well. These would lose their caches, and with a
        seed they would use the same shuffle order in every epoch.
        """
        if self._datasets is None:
            self._datasets = self._new_datasets()
        epochs, self.skipped = self.coordinator.take_start() if self.trains else (0, ())
        for _ in range(epochs):
            # Advances the shuffle order to the next epoch's.
            self._new_iterators()
        iterators = self._new_iterators()
        if any(self.skipped):
            skip = worker_functions.skip(self.skipped)
            for skipped in self.coordinator._create_per_worker_resources(
                skip, (iterators,)
            )._values:
                skipped.fetch()
        return iterators

    def _new_datasets(self) -> Any:
        """As TensorFlow's, but with a separate function for each worker."""
        dataset = self.dataset_functions[0].structured_outputs
        self._iterator_spec = self.iterator_spec
        workers = self.coordinator._cluster.workers
        # Python functions, as TensorFlow's: TensorFlow calls them again for a restarted worker.
        values = [
            worker.create_resource(lambda make=make: make())
            for worker, make in zip(workers, self.dataset_functions, strict=True)
        ]
        for value in values:
            value._type_spec = dataset._type_spec
        return PerWorkerValues(tuple(values))

    def _new_iterators(self) -> Any:
        values = self.coordinator._create_per_worker_resources(iter, (self._datasets,))._values
        for value in values:
            value._type_spec = self._iterator_spec
        return PerWorkerDistributedIterator(values)
