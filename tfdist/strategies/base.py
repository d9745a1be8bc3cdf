"""`Strategy`, the base class of all distribution strategies.

A strategy object belongs to one task. It sets up its engine (a `tf.distribute.Strategy`, or
Horovod) and defines the number of replicas, how they share the data, and how their gradients are
combined. It does not handle files, the script's flags, or Keras's training loop, except for the
callbacks that it needs.

    class Mine(Strategy[MineOptions]):
        name = "mine"

        def set_up(self, options): ...           # builds self.tf_strategy
        @property
        def topology(self): ...
        def wrap_optimizer(self, optimizer): ...
        def distribute(self, feed): ...
        def prepare(self, model): ...            # may be left out

`set_up`, `topology`, `wrap_optimizer` and `distribute` are abstract. The hooks `scope`, `prepare`,
`describe`, `callbacks`, `cluster_metrics`, `states_of_replica`, `gather` and `serve` have defaults.
A row in `tfdist.config.strategies` names the class and that of its options.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import tensorflow as tf

from tfdist.config.options import Options
from tfdist.config.role import TaskSettings
from tfdist.coordination.agreement import Agreement
from tfdist.coordination.preemption import Preemption
from tfdist.coordination.stores.kv_store import KeyValueStore
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.errors import log
from tfdist.process import thread_stacks
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.cursor import EpochCursor
from tfdist.strategies.serving import serve_until_end

OptionsT = TypeVar("OptionsT", bound=Options)


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
      joins_batches: whether the losses and the metrics of a step are computed once, for the batches
        of all replicas together.
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
    joins_batches: bool = False

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


class Strategy(ABC, Generic[OptionsT]):
    """A distribution strategy in one task.

    Args:
      settings: what is known of this task, and its options.
      preemption: the signals that this task has received.

    Attributes:
      cluster: the job's tasks; empty for a single process and under `horovodrun`.
      task: this task.
      options: the options of this strategy.
      tf_strategy: the `tf.distribute.Strategy`; TensorFlow's default strategy if TensorFlow does
        not distribute the training. Not set in a task that serves.
      kv_store: the store that the training tasks share; None if this task trains alone.
      sum_of_step: sums a tensor over the replicas within a train step; None if they cannot.
      replica_of_step: the number of the replica that makes a train step, int or an integer tensor
        of shape [].
      checkpointing: saves the state of all tasks in one checkpoint, and restores it.
      cursor: counts and measures steps, and fast-forwards the data of a resumed job.
    """

    #: The name in the table.
    name: ClassVar[str]

    tf_strategy: tf.distribute.Strategy
    kv_store: KeyValueStore | None = None
    sum_of_step: Callable[[tf.Tensor], tf.Tensor] | None = None
    replica_of_step: Callable[[], int | tf.Tensor]
    checkpointing: Checkpointing
    cursor: EpochCursor

    _has_warned = False

    def __init__(self, settings: TaskSettings, preemption: Preemption | None = None) -> None:
        self.settings = settings
        self.cluster = settings.cluster
        self.task = settings.task
        self.options = cast(OptionsT, settings.options)
        self.preemption = preemption or Preemption()
        self.checkpointing = Checkpointing()
        self.cursor = EpochCursor()
        self.replica_of_step = lambda: self.topology.shard
        self.set_up(self.options)

    @functools.cached_property
    def agreement(self) -> Agreement:
        """Compares what this task is about to do with what the other training tasks do."""
        return Agreement(self.topology.peer, self.topology.peers, self.kv_store)

    def value_of_chief(self, key: str, choose: Callable[[], str]) -> str:
        """The value that the chief has chosen for all tasks, perhaps before a restart.

        Args:
          key: the name of the value.
          choose: called in the chief, if it has not chosen yet, and in a task that trains alone.

        Raises:
          TimeoutError: the chief has not chosen within `--startup_timeout`.
        """
        if self.kv_store is None:
            return choose()
        is_chief = self.topology.is_chief
        value = self.kv_store.get(key, 0.0 if is_chief else self.settings.startup_timeout)
        if value is None and is_chief:
            self.kv_store.put(key, value := choose())
        if value is None:
            raise TimeoutError(f"The chief has not said its {key}.")
        return value

    @property
    def _is_chief(self) -> bool:
        """Whether this task is the chief of the cluster; True if there is no cluster."""
        return not self.cluster or self.task == self.cluster.chief_task

    def _noticed(self, dataset: tf.data.Dataset, how: str) -> tf.data.Dataset:
        """Training data; a `fit` on them without tfdist's callbacks, which distribute it, says so.

        Args:
          dataset: the data.
          how: how this task then trains.
        """

        def notice() -> None:
            is_fit = thread_stacks.runs(threading.get_ident(), ("fit",))
            if is_fit and self.agreement.inside != "fit" and not self._has_warned:
                self._has_warned = True
                log(
                    f"warning: model.fit without job.callbacks: {self.topology.peer} trains alone, "
                    f"{how}"
                )

        is_alone = len(self.cluster.training_tasks or self.topology.peers) == 1
        return dataset if is_alone else sharding.Noticed(dataset, notice)

    def _start_server(self) -> None:
        """Starts TensorFlow's server of this task, through which another task computes here."""
        self._server = tf.distribute.Server(
            tf.train.ClusterSpec(self.cluster.jobs(in_tensorflow=True)),
            job_name=self.task.type,
            task_index=self.task.index,
            protocol="grpc",
        )

    @abstractmethod
    def set_up(self, options: OptionsT) -> None:
        """Builds `tf_strategy` and everything else that this strategy needs.

        May replace `checkpointing` and `cursor`, and set `kv_store`, `sum_of_step` and
        `replica_of_step`.

        Args:
          options: the options of this strategy, which are checked.
        """

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """The numbers of replicas and shards, and this task's place among them."""

    @abstractmethod
    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Makes an optimizer combine the gradients of all replicas.

        Called once per optimizer, within `scope`.

        Returns:
          The same object, which is changed in place.

        Raises:
          UsageError: the strategy cannot train with this optimizer.
        """

    @abstractmethod
    def distribute(self, feed: Feed) -> tf.data.Dataset:
        """The dataset for `model.fit` or `model.evaluate`. Every training task must call it.

        Args:
          feed: `feed.local` is this task's shard, in batches of the per-replica size.
        """

    def scope(self) -> AbstractContextManager[Any]:
        """The scope for creating the model, its optimizer and its metrics."""
        return cast(AbstractContextManager[Any], self.tf_strategy.scope())

    def prepare(self, model: tf.keras.Model) -> None:
        """Prepares a compiled model for its first step: the strategy may build, cut or wrap it.

        Called at the beginning of each `fit`, after the data was distributed and before the
        optimizer is wrapped. The model is built if its inputs are known.

        Raises:
          UsageError: the strategy cannot train the model.
        """

    def describe(self, model: tf.keras.Model) -> Sequence[str]:
        """What this strategy has made of a model after `prepare`, as lines for the user.

        They are logged before the first step, and printed by `tfdist run --dry_run` if the
        strategy's row says so.
        """
        return ()

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """The Keras callbacks that this strategy needs; they run before all others."""
        return []

    def cluster_metrics(self, model: tf.keras.Model, logs: dict[str, float]) -> dict[str, float]:
        """The metrics over the examples of all tasks, after an evaluation. Every training task must
        call it.

        Args:
          model: the evaluated model.
          logs: the result of `model.evaluate` in this task.
        """
        return logs

    def states_of_replica(self, model: tf.keras.Model) -> list[tf.Variable]:
        """The variables that each replica has separately; a replica without an example must not
        change them in a step. Called while a step is traced."""
        return []

    def gather(self, number: int) -> list[int]:
        """Gathers a number from every training task; returns them in the order of
        `Topology.peers`. Every training task must call it."""
        return [number]

    def serve(self) -> None:
        """Serves the other tasks; returns when the chief has finished.

        Raises:
          RuntimeError: this task trains.
        """
        if not self.settings.serves:
            raise RuntimeError(f"{self.task} trains under {self.name}: there is nothing to serve.")
        serve_until_end(self.settings, self.preemption)
