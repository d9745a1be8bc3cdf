"""The `parameter_server` strategy for Keras: training with variables on the ps.

Updates are asynchronous, or synchronous with `--sync`.

The chief coordinates; workers and ps serve. In a job without a chief, worker 0 is the chief: it
coordinates and serves in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.cluster import Task, host_and_port
from tfdist.cluster.task_types import CHIEF
from tfdist.compat import building, checks
from tfdist.compat import keras as keras_compat
from tfdist.config.strategies.rows import ParameterServerOptions
from tfdist.coordination import listening, probe
from tfdist.coordination.liveness import heartbeat
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.errors import EXIT_FAILED, log, refuse
from tfdist.process.deadline import wait_until
from tfdist.process.devices import use_devices
from tfdist.strategies.base import Strategy, Topology
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.cursor import EpochCursor
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.steps.departure import Departure
from tfdist.strategies.parameter_server.steps.exchange import Exchange
from tfdist.strategies.parameter_server.steps.synchronous_functions import Synchronous
from tfdist.strategies.parameter_server.steps.tracing import number_of_worker
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards
from tfdist.strategies.parameter_server.variables import partitioner as partitioners
from tfdist.strategies.parameter_server.variables.checkpoint_layout import WholeLayout
from tfdist.strategies.parameter_server.variables.partitioner import Partitioner, partitioner_of
from tfdist.strategies.serving import serve_until_end
from tfdist.upstream import keras2_class_weight, keras2_steps_per_execution


class _Checkpointing(Checkpointing):
    """Each ps saves and restores its variables if it has the directory; else the chief does.

    The chief may not have the memory for all variables.

    Args:
      num_ps: the number of parameter servers.
    """

    #: The layout of the model in training.
    layout: WholeLayout

    io_device = "/job:chief/replica:0/task:0/device:CPU:0"

    def __init__(self, num_ps: int) -> None:
        self.owners = [_device_of_ps(index) for index in range(num_ps)]

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        return {"variables": self.layout.variables()} if keras_compat.is_keras_3(model) else {}


class _WithoutTrainGraph(tf.keras.callbacks.Callback):
    """Keeps Keras 2's TensorBoard from writing the train function's graph, which is never traced.

    The workers' steps are traced as another function.
    """

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.train_tf_function = None


class _Cursor(EpochCursor):
    """Counts steps with the coordinator, because the workers advance independently."""

    sees_steps = False

    def __init__(self, coordinator: EpochCoordinator) -> None:
        super().__init__()
        self._coordinator = coordinator

    @property
    def steps_made(self) -> int:
        return self._coordinator.steps_made

    @property
    def progress(self) -> int:
        return self._coordinator.progress

    @property
    def measured(self) -> dict[str, float]:
        epoch = self._coordinator.training_epoch
        return {} if epoch is None else epoch.measured()

    @property
    def steps_by_worker(self) -> dict[str, int]:
        epoch = self._coordinator.training_epoch
        return {} if epoch is None else epoch.steps_by_worker()

    def step_of_epoch(self, steps: Sequence[int]) -> int:
        is_synchronous = self._coordinator.synchronous is not None
        return max(steps, default=0) if is_synchronous else sum(steps)

    def on_step_begin(self, call: Callable[[Callable[[], Sequence[int]], int], None]) -> None:
        self._coordinator.before_step = lambda epoch, steps: call(epoch.position, steps)

    def fast_forward(
        self, model: tf.keras.Model, epochs: int, steps: Sequence[int], *, cardinality: int
    ) -> None:
        self._coordinator.start_at(epochs, steps, reads_on=cardinality != sharding.INFINITE)


class ParameterServer(Strategy[ParameterServerOptions]):
    """Training with variables on the ps: asynchronous, or synchronous with `--sync`."""

    name = "parameter_server"

    checkpointing: _Checkpointing
    cursor: _Cursor

    _synchronous: Synchronous | None = None

    def set_up(self, options: ParameterServerOptions) -> None:
        self._replicas = options.gradients_per_update(self.cluster)
        if keras_compat.is_keras_3(tf.keras.Model):
            _prepare_keras_3()
        else:
            keras2_class_weight.apply()
            keras2_steps_per_execution.apply()
        tasks = [task for task in self.cluster.tasks() if task.type == self.task.type]
        use_devices(
            self.settings.num_gpus if self.task.kind.has_gpu else 0,
            place=self.cluster.local_rank_of(self.task, tasks),
        )
        if not self.task.kind.leads:
            self._start_server()
        if self._is_chief:
            self._coordinate(partitioner_of(options))

    @property
    def topology(self) -> Topology:
        own = str(self.task)
        return Topology(
            own,
            (own,),
            is_chief=self._is_chief,
            num_replicas=self._replicas or 1,
            num_shards=self.options.num_shards(self.cluster),
            is_synchronous=self._replicas is not None,
        )

    def wrap_optimizer(self, optimizer: Any) -> Any:
        return self._synchronous.recorder.wrap(optimizer) if self._synchronous else optimizer

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        topology = self.topology
        finite = int(feed.local.cardinality()) != sharding.INFINITE
        if not finite and topology.num_shards > len(self.cluster.worker):
            refuse(
                self.options.given("data_shards"),
                f"{len(self.cluster.worker)} for data without an end: a worker would not come to "
                "its second shard",
                "Leave it out, or leave out dataset.repeat().",
            )
        makers = tuple(
            partial(feed.shard, topology.input_context_of(shard))
            for shard in range(topology.num_shards)
        )
        shards = sharding.Shards(feed.local, makers, trains=feed.trains)
        return sharding.for_keras(shards, sharding.UNKNOWN if finite else sharding.INFINITE)

    def prepare(self, model: tf.keras.Model) -> None:
        checks.check_no_state_of_a_replica(model, self.name)
        checks.check_is_not_compiled_by_xla(model, self.name)
        if keras_compat.is_keras_3(model):
            checks.check_scope(model, self.tf_strategy, self.name)
        if self._synchronous is not None:
            checks.check_no_synchronized_layer(model, f"{self.name} with --sync")
            self._synchronous.model = model
        # The slots must exist, because they lie on the ps of their variables, too.
        building.build_optimizers(model)
        for split in self.tf_strategy.split_variables:
            split.put_together()
        self.checkpointing.layout = WholeLayout(model, self.tf_strategy.placement)

    def describe(self, model: tf.keras.Model) -> list[str]:
        variables = self.checkpointing.layout.variables()
        whole = partitioners.whole_variables(self.tf_strategy.layer_partitioner, variables)
        return [line for line in (whole, self.tf_strategy.placement.advice()) if line is not None]

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [] if keras_compat.is_keras_3(tf.keras.Model) else [_WithoutTrainGraph()]

    def serve(self) -> None:
        if self.options.min_workers is None or not self.task.kind.trains:
            return super().serve()
        departure = Departure(self.task.index)
        may_leave = partial(departure.may_leave, self._server)
        return serve_until_end(self.settings, self.preemption, may_leave=may_leave)

    def _workers_away(self) -> list[int]:
        """The workers that are not there, as soon as enough others are."""
        least, workers = self.options.min_workers, self.cluster.worker
        if least is None:
            return []
        away: list[int] = []

        def are_enough() -> bool:
            found = [probe.identify(address) for address in workers]
            away[:] = [n for n, each in enumerate(found) if each is not probe.Listener.SERVER]
            return len(workers) - len(away) >= least

        seconds = self.settings.startup_timeout
        if not wait_until(are_enough, seconds, pause=0.1):
            found = len(workers) - len(away)
            log(f"error: {found} workers serve after {seconds:g} s, and not --min_workers={least}")
            sys.exit(EXIT_FAILED)
        return away

    def _coordinate(self, partitioner: Partitioner | None) -> None:
        jobs = self.cluster.jobs(in_tensorflow=True)
        if not self.cluster.chief:
            host, _ = host_and_port(self.cluster.address(self.task))
            with listening.listen() as free:
                jobs[CHIEF] = [f"{host}:{free.getsockname()[1]}"]
        # TensorFlow's partitioned variables do not fit into those of Keras 3.
        self.tf_strategy = PassesShards(jobs, partitioner, self._workers_away())
        if self._replicas is not None:
            self._synchronous = Synchronous(
                replicas_to_aggregate=self._replicas,
                recovery_timeout=self.settings.startup_timeout,
                exchange=(exchange := Exchange(len(self.cluster.worker), _device_of_ps(0))),
            )
            if self._replicas == len(self.cluster.worker):  # There are no backup workers.
                self.sum_of_step, self.replica_of_step = exchange.sum, number_of_worker
        # A strategy has one coordinator, so Keras uses this one.
        coordinator = EpochCoordinator(
            self.tf_strategy,
            packs_transfers=self.options.pack_transfers,
            synchronous=self._synchronous,
        )
        self.checkpointing = _Checkpointing(len(self.cluster.ps))
        self.cursor = _Cursor(coordinator)
        servers = [task for task in self.cluster.tasks() if task != self.task]
        heartbeat.watch_in_subprocess(
            {str(task): self.cluster.address(task) for task in servers},
            self.settings.heartbeat_timeout,
            calls={
                str(task): partial(_call, task, coordinator, self.options.min_workers)
                for task in servers
            },
        )


def _device_of_ps(index: int) -> str:
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


def _prepare_keras_3() -> None:
    from tfdist.strategies.parameter_server.steps import keras3
    from tfdist.strategies.parameter_server.variables import split_layers
    from tfdist.upstream import keras3_gathered_rows, replica_seeds

    keras3.apply()
    keras3_gathered_rows.apply()
    replica_seeds.apply(number_of_worker)
    split_layers.apply()


def _call(task: Task, coordinator: EpochCoordinator, min_workers: int | None = None) -> bool:
    """Makes a small remote call to a task; returns whether the task is connected.

    A worker that asks to leave may do so, if as many as `min_workers` stay.
    """
    if task.kind.trains and coordinator.is_reconnecting(task.index):
        return False
    if task.kind.trains and min_workers is not None:
        coordinator.let_leave(task.index, min_workers)
        return True
    with tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"):
        tf.identity(0).numpy()
    return True
