"""The contract of a strategy: what a training script may ask of its job.

    job = tfdist.init()
    with job.scope():
        model.compile(optimizer=job.optimizer(tf.keras.optimizers.SGD(job.scaled_lr(0.1))), …)
    model.fit(job.dataset(train_input), epochs=10, callbacks=job.callbacks(output_dir))

`train_input` takes a `tf.distribute.InputContext` and returns a `tf.data.Dataset` of batches of the
per-replica size, sharded by the context; this holds under every strategy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from tfdist import broken_records, compat
from tfdist.cluster import Cluster, Task
from tfdist.errors import UsageError
from tfdist.flags import HEARTBEAT_TIMEOUT, JobFlags
from tfdist.preemption import Board, Preemption
from tfdist.strategies import datasets
from tfdist.strategies.callback_contract import CallbackContract
from tfdist.strategies.empty_batches import compute_on_empty_batches
from tfdist.strategies.session_contract import SessionContract
from tfdist.strategies.train_functions import after_skipping

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class Job(CallbackContract, SessionContract):
    """This task's part in a training job; a subclass for each strategy.

    Attributes:
      name: the strategy's name in the table.
      cluster: the job's tasks; empty for a process by itself and under `horovodrun`.
      task: this task.
      element_spec: the elements of the dataset that `dataset` made last; None before.
      scales_learning_rate: whether the script has called `scaled_lr`.
      for_estimators: whether the job is for Estimators and sessions.
      leader_evaluates: whether the task that leads evaluates an Estimator itself, without an
        evaluator.
      is_supervised: whether this task, on a machine of its own, is started again when it fails.
      model_dir: the output directory that TF_CONFIG names for Estimators; None where it does not.
      preemption: what signals ask of this task.
      strategy: the `tf.distribute.Strategy`, for custom loops; TensorFlow's default one where
        TensorFlow does not do the distributing. Not set in a task that serves.
    """

    name: ClassVar[str]

    #: The device whose machine reads and writes checkpoints; None for each variable's own.
    io_device: ClassVar[str | None] = None

    strategy: tf.distribute.Strategy

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        options: JobFlags,
        *,
        for_estimators: bool = False,
        leader_evaluates: bool = True,
        is_supervised: bool = False,
        model_dir: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.task = task
        self.for_estimators = for_estimators
        self.leader_evaluates = leader_evaluates
        self.is_supervised = is_supervised
        self.model_dir = model_dir
        self.element_spec: Any = None
        self._steps_for_keras = datasets.UNKNOWN
        self.scales_learning_rate = False
        self._dataset_fn: DatasetFunction | None = None
        self._local_datasets: list[tf.data.Dataset] = []
        self._options = options
        self.preemption = Preemption()
        self._set_up(options)
        if self.num_replicas > 1:
            compute_on_empty_batches()

    # What a subclass says of itself.

    def _set_up(self, options: JobFlags) -> None:
        """Builds `self.strategy`, or whatever else this strategy's engine needs."""
        raise NotImplementedError

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        """The dataset that Keras is given; see `dataset` and `eval_dataset`."""
        raise NotImplementedError

    # What a training script asks.

    @property
    def serves(self) -> bool:
        """Whether this task only serves others: `serve()` is then all that it has to do."""
        return False

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator, which follows the training from outside."""
        return self.task.type == "evaluator"

    @property
    def is_chief(self) -> bool:
        """Whether this task is the one that writes to the output directory."""
        return not self.evaluates and (not self.cluster or self.task == self.cluster.leader)

    @property
    def num_replicas(self) -> int:
        """Replicas over the cluster whose gradients meet in one update; 1 where updates are
        asynchronous (`tf.distribute.Strategy.num_replicas_in_sync`)."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def num_input_pipelines(self) -> int:
        """The shards that the training examples are divided into."""
        return 1

    @property
    def input_pipeline_id(self) -> int:
        """Which of the shards this task reads."""
        return 0

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """What this task's input function is given."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_input_pipelines,
            input_pipeline_id=self.input_pipeline_id,
            num_replicas_in_sync=self.num_replicas,
        )

    @property
    def input_contexts(self) -> list[tf.distribute.InputContext]:
        """What the input function is given, for each shard whose errors this task is to see."""
        return [self.input_context]

    @property
    def num_local_replicas(self) -> int:
        """The replicas of this task, over which its share of a batch is split."""
        return self.num_replicas

    @property
    def trainers(self) -> tuple[str, tuple[str, ...]]:
        own = str(self.task)
        return own, tuple(map(str, self.cluster.trainers)) if self.num_replicas > 1 else (own,)

    @property
    def startup_timeout(self) -> float:
        """Seconds that the tasks of the job wait for each other before they train."""
        return self._options.startup_timeout

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a sign of life after which another task counts as lost."""
        return self._options.heartbeat_timeout or HEARTBEAT_TIMEOUT

    @property
    def board(self) -> Board | None:
        """What the tasks that train together share; None where this one trains alone."""
        return None

    @property
    def is_infinite(self) -> bool:
        """Whether the dataset that `dataset` made last has no end."""
        return self._steps_for_keras == datasets.INFINITE

    @property
    def saves(self) -> bool:
        """Whether this task takes part in saving a checkpoint."""
        return self.is_chief

    @property
    def verbose(self) -> int:
        """`verbose` for Keras: a progress bar on the chief's terminal, a line an epoch where the
        chief's output goes to a file, nothing from the other tasks."""
        if not self.is_chief:
            return 0
        return 1 if sys.stdout.isatty() else 2

    def serve(self) -> None:
        """Serves the other tasks until the chief has ended, then returns."""
        raise RuntimeError(f"{self.task} trains under {self.name}: there is nothing to serve.")

    def scope(self) -> AbstractContextManager[Any]:
        """The scope in which the model, its optimizer and its metrics are to be made."""
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def global_batch_size(self, per_replica: int) -> int:
        """Examples behind one update of the weights: `per_replica` times `num_replicas`."""
        return per_replica * self.num_replicas

    def per_replica_batch_size(self, per_task: int) -> int:
        """A replica's share of the examples that a task trains on at a time.

        Raises:
          UsageError: the task's replicas do not divide them.
        """
        if per_task % self.num_local_replicas:
            raise UsageError(
                "batch size of a task",
                received=per_task,
                accepted=f"a multiple of {self.num_local_replicas}, the task's replicas",
                remedy="Choose another batch size, or fewer devices.",
            )
        return per_task // self.num_local_replicas

    def steps_per_epoch(self, examples: int, per_replica: int) -> int:
        """Updates of the weights in an epoch of `examples`, sharded by the example.

        Args:
          examples: examples over the whole cluster.
          per_replica: the batch of one replica.
        """
        longest_shard = -(-examples // self.num_input_pipelines)
        return -(-longest_shard // (per_replica * self.num_local_replicas))

    def scaled_lr(self, learning_rate: float) -> float:
        """`learning_rate` of one replica scaled to the batch behind one update.

        The linear scaling rule of Goyal et al. 2017 (arXiv:1706.02677): unchanged where updates
        are asynchronous, because each is made of one worker's batch. A job that goes on with
        another number of replicas scales what the checkpoint has, unless that is a schedule.
        """
        self.scales_learning_rate = True
        return learning_rate * self.num_replicas

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer to compile the model with."""
        return optimizer

    def dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """What `model.fit` must be given; call it in every task that trains.

        Each example of the shards that `dataset_fn` returns is seen once an epoch over the
        cluster, however the sizes divide. Only ranks that Keras sees alone, those of Horovod and of
        `--sync_period`, need equal steps: there one whose shard makes fewer batches repeats one
        example for each batch that it lacks.
        An infinite dataset wants `steps_per_epoch`, as everywhere in Keras. Autotuning of `tf.data`
        is off where the dataset's options do not ask for it: each epoch would end late by it.
        """
        dataset_fn = datasets.without_autotune(dataset_fn)
        self._remember("train", dataset_fn)
        dataset = self._distribute(dataset_fn, training=True)
        self.element_spec = dataset.element_spec
        self._steps_for_keras = int(dataset.cardinality())
        self._dataset_fn = dataset_fn
        return dataset

    def eval_dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """What `validation_data` must be given: as `dataset`, and without any repeat."""
        dataset_fn = datasets.without_autotune(dataset_fn)
        self._remember("eval", dataset_fn)
        return self._distribute(dataset_fn, training=False)

    def _remember(self, purpose: str, dataset_fn: DatasetFunction) -> None:
        makers = [partial(dataset_fn, context) for context in self.input_contexts]
        broken_records.remember(purpose, makers)

    def callbacks(
        self,
        output_dir: str,
        *,
        batch_size: int | None = None,
        keep: int = 5,
        save_steps: int | None = None,
    ) -> list[tf.keras.callbacks.Callback]:
        """The callbacks of `model.fit`: resume, checkpoints, logs and what the engine needs.

        Callbacks of your own come after these: under Horovod the logs are this rank's until the
        first of these has put those of all ranks in their place, and ranks that stop or change the
        learning rate by different numbers wait for each other for ever.

        Args:
          output_dir: the directory that all tasks share; `tfdist.output_directory` has its layout.
          batch_size: examples behind one update (`global_batch_size`); with it the logs say
            `examples_per_second` over the cluster.
          keep: how many checkpoints are kept.
          save_steps: a checkpoint is saved after each epoch, and after so many steps within one.
        """
        from tfdist import callbacks

        return callbacks.standard(
            self, output_dir, batch_size=batch_size, keep=keep, save_steps=save_steps
        )

    def evaluate(
        self,
        model: tf.keras.Model,
        dataset_fn: DatasetFunction,
        output_dir: str | None = None,
        *,
        epochs: int | None = None,
    ) -> Any:
        """Evaluates each example exactly once over the cluster; returns the metrics by name.

        In a task that trains, the model as it is; every such task calls it. In the evaluator, each
        new checkpoint in `output_dir` until the training has ended; returns None then, so that a
        script's `main` can return it. `epochs` are those that the training is to have: they tell
        the evaluator that what an earlier and shorter training has left is not yet the end.
        """
        if not self.evaluates:
            return self._evaluate(model, dataset_fn)
        if output_dir is None:
            raise UsageError(
                "output_dir",
                received=None,
                accepted="the training's output directory",
                remedy="Tell the evaluator where the checkpoints are.",
            )
        from tfdist import evaluation

        evaluation.follow(self, model, dataset_fn, output_dir, epochs=epochs)
        return None

    def _evaluate(self, model: tf.keras.Model, dataset_fn: DatasetFunction) -> dict[str, float]:
        logs: dict[str, float] = model.evaluate(
            self.eval_dataset(dataset_fn),
            callbacks=self.engine_callbacks(),
            return_dict=True,
            verbose=0,
        )
        return logs

    def count_steps(self) -> int:
        """Steps of an epoch, found by reading this task's shard once; collective."""
        assert self._dataset_fn is not None
        return self._steps(datasets.count_batches(self._dataset_fn(self.input_context)))

    def _steps(self, batches: int) -> int:
        """Steps of an epoch from the batches of this task's shard."""
        return -(-batches // self.num_local_replicas)

    def _remembered(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        self._local_datasets.append(dataset)
        return dataset

    def go_on(self, model: tf.keras.Model, epochs: int, steps: Sequence[int]) -> None:
        """Brings the data to where they stood; to be called when `fit` has begun.

        Args:
          model: the model that is being trained.
          epochs: how many have ended; their shuffles are not repeated.
          steps: of each shard's reader, within the next epoch; empty for none.
        """
        iterators = epochs * compat.iterators_per_epoch(model, self._steps_for_keras)
        for dataset in self._local_datasets:
            for _ in range(iterators):
                iter(dataset)
        skipped = self.step_of_epoch(steps)
        if skipped:
            model.train_function = after_skipping(model, skipped)
