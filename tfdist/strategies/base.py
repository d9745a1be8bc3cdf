"""`Strategy`, the base class of all distribution strategies.

A strategy object belongs to one task. It sets up its engine (a `tf.distribute.Strategy`, or
Horovod) and defines the number of replicas, how they share the data, and how their gradients are
combined. It does not handle files, the script's flags, or Keras's training loop, except for the
callbacks that it needs.

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
from tfdist.coordination.kv_store import KeyValueStore
from tfdist.coordination.preemption import Preemption
from tfdist.flags import HEARTBEAT_TIMEOUT, JobFlags
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.cursor import EpochCursor

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


@dataclass(frozen=True)
class Topology:
    """The number of replicas and shards of a job, and this task's place among them.

    Attributes:
      peer: the name of this task in `peers`.
      peers: the names of the tasks that make each step together, in the same order in every task.
      is_chief: whether this task writes the checkpoints and the logs.
      num_replicas: the number of replicas whose gradients are combined in one update; 1 if updates
        are asynchronous (`tf.distribute.Strategy.num_replicas_in_sync`).
      num_local_replicas: the number of this task's replicas.
      num_shards: the number of shards of the training examples.
      shard: the index of the shard that this task reads.
      is_synchronous: whether each update combines one batch of every shard.
      averages_weights: whether replicas update their weights independently and average them later
        (local SGD), so that an update uses the batch of one replica.
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
        """The argument of the input function for a shard."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_shards,
            input_pipeline_id=shard,
            num_replicas_in_sync=self.num_replicas,
        )


class Strategy(ABC):
    """A distribution strategy in one task.

    Args:
      cluster: the job's tasks; empty for a single process and under `horovodrun`.
      task: this task.
      options: the values of tfdist's flags.
      preemption: the signals that this task has received.
      is_restartable: whether a launcher on this task's machine restarts the task when it fails.
      environ: the environment of this process.

    Attributes:
      tf_strategy: the `tf.distribute.Strategy`; TensorFlow's default strategy if TensorFlow does
        not distribute the training. Not set in a task that serves.
      checkpointing: saves the state of all tasks in one checkpoint, and restores it.
      cursor: counts steps, and fast-forwards the data of a resumed job.
    """

    #: The name in the table.
    name: ClassVar[str]
    #: Whether the strategy is for Estimators and sessions.
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
        """Seconds that the tasks of the job wait for each other before training."""
        return self.options.startup_timeout

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a heartbeat after which another task is considered lost."""
        return self.options.heartbeat_timeout or HEARTBEAT_TIMEOUT

    @abstractmethod
    def set_up(self, options: JobFlags) -> None:
        """Builds `tf_strategy` and everything else that the engine needs."""

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """The numbers of replicas and shards, and this task's place among them."""

    @abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """The scope for creating the model, its optimizer and its metrics."""

    @abstractmethod
    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Makes an optimizer combine the gradients of all replicas.

        Called once per optimizer, within `scope`.

        Returns:
          The same object, changed in place, where Keras allows that; otherwise a new optimizer.

        Raises:
          UsageError: the strategy cannot train with this optimizer.
        """

    @abstractmethod
    def distribute(self, dataset_fn: DatasetFunction, *, training: bool) -> tf.data.Dataset:
        """The dataset for `model.fit` or `model.evaluate`; collective over the tasks.

        Args:
          dataset_fn: takes a `tf.distribute.InputContext` and returns that shard, in batches of
            the per-replica size.
          training: True for training data, which may repeat examples if the engine needs equal
            numbers of steps. False for evaluation data, which contains every example once.
        """

    @abstractmethod
    def check(self, model: tf.keras.Model) -> None:
        """Checks before the first step that this strategy can train the compiled model.

        Raises:
          UsageError: the strategy cannot train it.
        """

    def steps_of(self, batches: int) -> int:
        """The number of steps per epoch if this task's shard has `batches`; collective."""
        return -(-batches // self.topology.num_local_replicas)

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """The Keras callbacks that the engine needs; they run before all others."""
        return []

    def cluster_metrics(self, model: tf.keras.Model, logs: dict[str, float]) -> dict[str, float]:
        """The metrics over the examples of all tasks, after an evaluation; collective.

        Args:
          model: the evaluated model.
          logs: the result of `model.evaluate` in this task.
        """
        return logs

    @property
    def kv_store(self) -> KeyValueStore | None:
        """The store that the training tasks share; None if this task trains alone."""
        return None

    def serve(self) -> None:
        """Serves the other tasks; returns when the chief has finished.

        Raises:
          RuntimeError: this task trains.
        """
        raise RuntimeError(f"{self.task} trains under {self.name}: there is nothing to serve.")
