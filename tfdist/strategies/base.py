"""The contract of a strategy: what a way of distributing a training must provide.

A strategy is made for one task. It sets up its engine (a `tf.distribute.Strategy`, or Horovod), and
answers how many replicas there are, how they share the data, and how their gradients meet. It knows
nothing of files, flags of the script, or Keras's training loop beyond the callbacks that it needs.

    class Mine(Strategy):
        name = "mine"

        def set_up(self, options): ...           # builds self.tf_strategy
        @property
        def topology(self): ...
        def scope(self): ...
        def wrap_optimizer(self, optimizer): ...
        def distribute(self, dataset_fn, *, training): ...
        def check(self, model): ...

These six members are abstract. `callbacks`, `checkpointing`, `cursor`, `cluster_metrics`, `serve`
and `kv_store` have defaults. A row in `tfdist.strategies.table` names the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.coordination.preemption import Board, Preemption
from tfdist.flags import HEARTBEAT_TIMEOUT, JobFlags
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.cursor import EpochCursor

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


@dataclass(frozen=True)
class Topology:
    """How many replicas a job has, and which part of the data this task reads.

    Attributes:
      is_chief: whether this task writes the checkpoints and the logs.
      num_replicas: the replicas whose gradients are combined in one update; 1 if updates are
        asynchronous (`tf.distribute.Strategy.num_replicas_in_sync`).
      num_local_replicas: the replicas of this task.
      num_shards: the shards that the training examples are divided into.
      shard: the shard that this task reads.
      peers: the names of the tasks that train step by step together, in a common order.
      peer: the name of this task among them.
      is_synchronous: whether each update combines a batch of every shard.
      averages_weights: whether replicas update their weights alone and average them later, so that
        an update has the batch of one replica.
    """

    peer: str
    peers: tuple[str, ...]
    is_chief: bool = True
    num_replicas: int = 1
    num_local_replicas: int = 1
    num_shards: int = 1
    shard: int = 0
    is_synchronous: bool = True
    averages_weights: bool = False

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """The argument of this task's input function."""
        return self.input_context_of(self.shard)

    def input_context_of(self, shard: int) -> tf.distribute.InputContext:
        """The argument of the input function that makes a shard."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_shards,
            input_pipeline_id=shard,
            num_replicas_in_sync=self.num_replicas,
        )


class Strategy(ABC):
    """One task's part in one way of distributing a training.

    Args:
      cluster: the job's tasks; empty for a process by itself and under `horovodrun`.
      task: this task.
      options: the values of tfdist's flags.
      preemption: what signals ask of this task.
      is_restartable: whether a launcher on this task's machine restarts it when it fails.
      environ: the environment that the process was started with.

    Attributes:
      tf_strategy: the `tf.distribute.Strategy`; TensorFlow's default one where TensorFlow does not
        distribute. Not set in a task that serves.
      checkpointing: how the state of all tasks becomes one checkpoint, and back.
      cursor: where the training stands in its data.
    """

    #: The name in the table.
    name: ClassVar[str]
    #: Whether it is for Estimators and sessions.
    for_estimators: ClassVar[bool] = False

    tf_strategy: tf.distribute.Strategy
    checkpointing: Checkpointing
    cursor: EpochCursor

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        options: JobFlags,
        *,
        preemption: Preemption | None = None,
        is_restartable: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.task = task
        self.options = options
        self.preemption = preemption or Preemption()
        self.is_restartable = is_restartable
        self.environ = environ or {}
        self.checkpointing = Checkpointing()
        self.cursor = EpochCursor(self.steps_of)
        self.set_up(options)

    @property
    def startup_timeout(self) -> float:
        """Seconds that the tasks of the job wait for each other before they train."""
        return self.options.startup_timeout

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a sign of life after which another task counts as lost."""
        return self.options.heartbeat_timeout or HEARTBEAT_TIMEOUT

    @abstractmethod
    def set_up(self, options: JobFlags) -> None:
        """Builds `tf_strategy`, or whatever else this strategy's engine needs."""

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """The replicas, the shards, and this task's place among them."""

    @abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """The scope in which the model, its optimizer and its metrics are created."""

    @abstractmethod
    def wrap_optimizer(self, optimizer: Any) -> Any:
        """The optimizer with its gradients combined over the replicas.

        Returns the same object, changed in place, wherever Keras allows it. Called once for an
        optimizer, within `scope`.

        Raises:
          UsageError: the strategy cannot train with this optimizer.
        """

    @abstractmethod
    def distribute(self, dataset_fn: DatasetFunction, *, training: bool) -> tf.data.Dataset:
        """The dataset for `model.fit` (`training`) or `model.evaluate`; collective over the tasks.

        Args:
          dataset_fn: makes a shard from a `tf.distribute.InputContext`, in batches of the
            per-replica size.
          training: whether it is trained on. Every example counts once in an evaluation; where an
            engine needs equal numbers of steps, training may repeat some.
        """

    @abstractmethod
    def check(self, model: tf.keras.Model) -> None:
        """Checks, before the first step, that this strategy can train the compiled model.

        Raises:
          UsageError: it cannot.
        """

    def steps_of(self, batches: int) -> int:
        """The steps of an epoch, from the batches of this task's shard; collective."""
        return -(-batches // self.topology.num_local_replicas)

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """The Keras callbacks that the engine itself needs; they come before all others."""
        return []

    def cluster_metrics(self, model: tf.keras.Model, logs: dict[str, float]) -> dict[str, float]:
        """The metrics of all tasks' examples after an evaluation; collective over the tasks.

        Args:
          model: the model that was evaluated.
          logs: what `model.evaluate` returned in this task.
        """
        return logs

    @property
    def kv_store(self) -> Board | None:
        """The store that the tasks which train together share; None if this one trains alone."""
        return None

    def serve(self) -> None:
        """Serves the other tasks until the chief has finished.

        Raises:
          RuntimeError: this task trains.
        """
        raise RuntimeError(f"{self.task} trains under {self.name}: there is nothing to serve.")
