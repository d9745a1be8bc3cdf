"""The `in_graph` strategy: one client runs a model on several workers, in replicas and stages.

The chief, or worker 0, is the client: it runs the training loop, reads the data and writes the
checkpoints. The other workers only serve. Each step is one TensorFlow function over all workers.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.compat import checks
from tfdist.config.strategies.rows import InGraphOptions
from tfdist.coordination import probe
from tfdist.coordination.liveness import heartbeat
from tfdist.data.feed import Feed
from tfdist.errors import LostTaskError, UsageError
from tfdist.process.devices import use_devices
from tfdist.strategies.base import Strategy, Topology
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.in_graph import batches
from tfdist.strategies.in_graph.grid import grid_of
from tfdist.strategies.in_graph.model_check import check_model
from tfdist.strategies.in_graph.split_model import SplitModel
from tfdist.strategies.in_graph.stages import stages_of
from tfdist.strategies.in_graph.variables import spread
from tfdist.strategies.keras2_gradients import reduce_gradients
from tfdist.upstream.keras_callback_logs import IgnoresStepLogs


class _Checkpointing(Checkpointing):
    """Each worker saves and restores its variables if it has the directory; else the client does.

    The client may not have the memory for all variables. It exports the model without the split
    over the workers.
    """

    def __init__(self, strategy: InGraph) -> None:
        self._strategy = strategy
        grid = strategy.grid
        self.io_device = grid.client
        self.owners = grid.devices if grid.num_stages > 1 else ()

    def save_scope(self, model: tf.keras.Model) -> AbstractContextManager[None]:
        split_model = self._strategy.split_model
        return nullcontext() if split_model is None else split_model.undone()


class _SplitEvaluation(IgnoresStepLogs):
    """Evaluates a trained model on the workers, also after its `fit`."""

    def __init__(self, strategy: InGraph) -> None:
        super().__init__()
        self._strategy = strategy

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        split_model = self._strategy.split_model
        if split_model is not None and split_model.is_of(self.model):
            split_model.apply()


class InGraph(Strategy[InGraphOptions]):
    """Training by one client on workers that serve.

    Attributes:
      grid: the workers, as replicas of stages.
      split_model: the model in training, after `prepare`.
    """

    name = "in_graph"

    split_model: SplitModel | None = None

    _element_spec: Any = None

    def set_up(self, options: InGraphOptions) -> None:
        tasks = [task for task in self.cluster.tasks() if task.type == self.task.type]
        place = self.cluster.local_rank_of(self.task, tasks) if self.cluster else (0, 1)
        use_devices(self.settings.num_gpus, place=place)
        self.sum_of_step = self._sum_of_step
        if self._is_chief:
            self._connect()
        else:
            self._start_server()

    @property
    def topology(self) -> Topology:
        own, replicas = str(self.task), max(1, len(self.cluster.worker)) // self.options.stages
        return Topology(
            own,
            (own,),
            is_chief=self._is_chief,
            num_replicas=replicas,
            num_local_replicas=replicas,
            joins_batches=True,
        )

    def scope(self) -> AbstractContextManager[Any]:
        return spread(self.grid.devices)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        # Keras 2 would pass the gradients of all variables through one operation, on one device.
        # They are those of the whole batch already.
        return reduce_gradients(optimizer, lambda gradients, _: gradients)

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        for spec in tf.nest.flatten(feed.local.element_spec):
            if not isinstance(spec, tf.TensorSpec):
                raise UsageError(
                    "data",
                    received=type(spec).__name__.removesuffix("Spec"),
                    accepted=f"dense tensors under {self.name}, which divides and joins batches",
                    remedy="Convert it in the input function, or choose another strategy.",
                )
        dataset = batches.joined(feed.local, self.topology.num_replicas)
        self._element_spec = dataset.element_spec
        return self._noticed(dataset, "on the batches of all replicas") if feed.trains else dataset

    def prepare(self, model: tf.keras.Model) -> None:
        checks.check_does_not_run_eagerly(model, self.name)
        if getattr(model, "jit_compile", False):
            # Keras 3 turns it on by itself.
            model.jit_compile = False
        checks.check_no_synchronized_layer(model, self.name)
        if self.split_model is not None and self.split_model.is_of(model):
            self.split_model.apply()
            return
        self.split_model = None
        if not model.built:
            raise UsageError(
                "model",
                received=f"{model.name}, which has no weights before its first step",
                accepted=f"a built model under {self.name}",
                remedy="Call model.build in the script.",
            )
        inputs, _, _ = tf.keras.utils.unpack_x_y_sample_weight(self._element_spec)
        if inputs is not None:
            check_model(model, inputs, recompute=self.options.recompute)
        stages = stages_of(model, self.options.stages)
        self.split_model = SplitModel(model, self.grid, stages, self.options)
        self.split_model.apply()

    def describe(self, model: tf.keras.Model) -> list[str]:
        assert self.split_model is not None
        return [
            f"stage {index} on {', '.join(map(str, self.grid.workers_of(index)))}: {stage}"
            for index, stage in enumerate(self.split_model.stages)
        ]

    def _sum_of_step(self, value: tf.Tensor) -> tf.Tensor:
        if self.split_model is not None and self.split_model.pipeline.is_in_part:
            raise UsageError(
                "job.gather",
                received=f"a call in the model under {self.name}, which divides batches there",
                accepted="a call in the loss or in train_step, where the batch is whole",
                remedy="Compare the examples there, or choose another strategy.",
            )
        return value

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [_SplitEvaluation(self)]

    def _connect(self) -> None:
        servers = {
            str(task): self.cluster.address(task)
            for task in self.cluster.tasks()
            if task != self.task
        }
        is_connected = not self.settings.is_dry_run
        if servers and is_connected:
            self._wait_for(servers)
            tf.config.experimental_connect_to_cluster(
                tf.train.ClusterSpec(self.cluster.jobs(in_tensorflow=True)),
                job_name=self.task.type,
                task_index=self.task.index,
                protocol="grpc",
            )
            heartbeat.watch_in_subprocess(servers, self.settings.heartbeat_timeout)
        self.tf_strategy = tf.distribute.get_strategy()
        self.grid = grid_of(self.cluster, self.task, self.options.stages, is_connected=is_connected)
        self.checkpointing = _Checkpointing(self)

    def _wait_for(self, servers: dict[str, str]) -> None:
        """Waits for the workers' servers: TensorFlow would wait for them without a limit."""
        deadline = time.monotonic() + self.settings.startup_timeout
        for task, address in servers.items():
            if not probe.wait_for_server(address, deadline - time.monotonic()):
                seconds = self.settings.startup_timeout
                raise LostTaskError(task, address, seconds, "--startup_timeout")
