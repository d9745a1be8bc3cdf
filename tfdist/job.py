"""Everything that a training script may ask of its job.

    job = tfdist.init()
    with job.scope():
        model = build(); model.compile(SGD(job.scaled_lr(0.1)), loss)
    model.fit(job.dataset(train_input), epochs=10, callbacks=job.callbacks("/shared/run1"))

or, in the short form, `job.fit(build_model, train_input, …)` within `@tfdist.main`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from tfdist.cluster import Cluster, Task
from tfdist.errors import EXIT_OK, UsageError
from tfdist.plan import Plan

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.coordination.preemption import Preemption
    from tfdist.strategies.base import DatasetFunction, Topology
    from tfdist.training.run import TrainingRun


class Job:
    """This task's part in a training job.

    Attributes:
      cluster: the job's tasks; empty for a process by itself and under `horovodrun`.
      task: this task.
      distribution: how the job is distributed, a `tfdist.strategies.base.Strategy`.
      preemption: what signals ask of this task.
      model_dir: the output directory that TF_CONFIG names for Estimators; None if it does not.
    """

    #: Whether the job is for Estimators and sessions.
    for_estimators: ClassVar[bool] = False

    def __init__(self, plan: Plan, run: TrainingRun) -> None:
        self.plan = plan
        self.run = run
        self.cluster: Cluster = plan.cluster
        self.task: Task = plan.task
        self.distribution = run.strategy
        self.preemption: Preemption = run.preemption
        self.model_dir = plan.config.model_dir

    # What this task is.

    @property
    def name(self) -> str:
        """The strategy's name in the table."""
        return self.distribution.name

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy`, for custom loops; TensorFlow's default one where TensorFlow
        does not distribute. Not available in a task that serves."""
        return self.distribution.tf_strategy

    @property
    def topology(self) -> Topology:
        """The replicas, the shards, and this task's place among them."""
        return self.distribution.topology

    @property
    def serves(self) -> bool:
        """Whether this task only serves others: `serve()` is then all that it has to do."""
        return self.plan.serves

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator, which follows the training from outside."""
        return self.plan.evaluates

    @property
    def is_chief(self) -> bool:
        """Whether this task writes to the output directory."""
        return self.topology.is_chief

    @property
    def num_replicas(self) -> int:
        """The replicas whose gradients are combined in one update; 1 if updates are asynchronous
        (`tf.distribute.Strategy.num_replicas_in_sync`)."""
        return self.topology.num_replicas

    @property
    def num_input_pipelines(self) -> int:
        """The shards that the training examples are divided into."""
        return self.topology.num_shards

    @property
    def input_pipeline_id(self) -> int:
        """Which of the shards this task reads."""
        return self.topology.shard

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """The argument of this task's input function."""
        return self.topology.input_context

    @property
    def verbose(self) -> int:
        """`verbose` for Keras: a progress bar on the chief's terminal, a line an epoch if the
        chief's output goes to a file, and nothing from the other tasks."""
        if not self.is_chief:
            return 0
        return 1 if sys.stdout.isatty() else 2

    # Batches, steps and the learning rate.

    def global_batch_size(self, per_replica: int) -> int:
        """Examples behind one update of the weights: `per_replica` times `num_replicas`."""
        return per_replica * self.num_replicas

    def per_replica_batch_size(self, per_task: int) -> int:
        """A replica's share of the examples that a task trains on at a time.

        Raises:
          UsageError: the task's replicas do not divide them.
        """
        replicas = self.topology.num_local_replicas
        if per_task % replicas:
            raise UsageError(
                "batch size of a task",
                received=per_task,
                accepted=f"a multiple of {replicas}, the task's replicas",
                remedy="Choose another batch size, or fewer devices.",
            )
        return per_task // replicas

    def steps_per_epoch(self, examples: int, per_replica: int) -> int:
        """Updates of the weights in an epoch of `examples`, sharded by the example.

        Args:
          examples: examples over the whole cluster.
          per_replica: the batch of one replica.
        """
        shards = self.topology.num_shards
        batch = per_replica * self.topology.num_local_replicas
        steps = [-(-((examples + shard) // shards) // batch) for shard in range(shards)]
        return max(steps) if self.topology.is_synchronous else sum(steps)

    def scaled_lr(self, learning_rate: float) -> float:
        """`learning_rate` of one replica, scaled to the batch behind one update.

        The linear scaling rule of Goyal et al. 2017 (arXiv:1706.02677). Unchanged if updates are
        asynchronous or replicas average their weights, because each update is then made of one
        replica's batch. A job that resumes with another number of replicas scales the rate of the
        checkpoint, unless that is a schedule.
        """
        if self.topology.averages_weights:
            return learning_rate
        self.run.scales_learning_rate = True
        return learning_rate * self.num_replicas

    # The short form.

    def fit(
        self,
        build_model: Callable[[Any], tf.keras.Model],
        train_input: DatasetFunction,
        *,
        epochs: int,
        output_dir: str,
        validation: DatasetFunction | None = None,
        steps_per_epoch: int | None = None,
        batch_size: int | None = None,
        save_steps: int | None = None,
        keep: int = 5,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
        verbose: int | None = None,
    ) -> tf.keras.callbacks.History:
        """Builds, trains, saves and resumes a Keras model; the same call in every task.

        Returns in tasks that train. A task that serves, and the evaluator, end within it when the
        training has ended, with exit code 0; the evaluator evaluates `validation` on every
        checkpoint of an epoch.

        Args:
          build_model: takes this job and returns a compiled model; called in `scope()`.
          train_input: takes a `tf.distribute.InputContext` and returns a `tf.data.Dataset` of
            batches of the per-replica size, sharded by the context.
          epochs: the epochs of the training, those before a restart included.
          output_dir: the directory that all tasks share; see `callbacks`.
          validation: as `train_input`, to evaluate after each epoch.
          steps_per_epoch: for a dataset without end.
          batch_size: examples behind one update (`global_batch_size`), to log the speed.
          save_steps: as in `callbacks`.
          keep: as in `callbacks`.
          callbacks: callbacks of your own; they come after those of tfdist.
          verbose: as in Keras; by default `Job.verbose`.

        Returns:
          Keras's `History`; its `model` is the trained model.

        Raises:
          UsageError: the strategy cannot train this model; or an evaluator has no `validation`.
          SystemExit: the task does not train, or it was preempted (exit code 75).
        """
        if self.serves:
            self.serve()
            sys.exit(EXIT_OK)
        with self.scope():
            model = build_model(self)
        if self.evaluates:
            if validation is None:
                raise UsageError(
                    "validation",
                    received=None,
                    accepted="an input function, in a job with an evaluator",
                    remedy="Pass validation to job.fit, or leave the evaluator out.",
                )
            self.evaluate(model, validation, output_dir, epochs=epochs)
            sys.exit(EXIT_OK)
        own = self.callbacks(output_dir, batch_size=batch_size, keep=keep, save_steps=save_steps)
        return model.fit(
            self.dataset(train_input),
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            validation_data=None if validation is None else self.eval_dataset(validation),
            callbacks=[*own, *callbacks],
            verbose=self.verbose if verbose is None else verbose,
        )

    # The long form.

    def serve(self) -> None:
        """Serves the other tasks until the chief has finished, then returns."""
        self.distribution.serve()

    def scope(self) -> AbstractContextManager[Any]:
        """The scope in which the model, its optimizer and its metrics are created."""
        return self.distribution.scope()

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer with its gradients combined over the replicas, for a custom loop.

        `fit` with the callbacks of this job does so by itself.
        """
        return self.run.wrap_optimizer(optimizer)

    def dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """The dataset for `model.fit`; call it in every task that trains.

        Each example of the shards that `dataset_fn` returns is seen once an epoch over the
        cluster, whatever their sizes are. Horovod and `--sync_period` need equal steps: a rank
        whose shard has fewer batches repeats one example for each missing batch.
        A dataset without end needs `steps_per_epoch`, as everywhere in Keras. Autotuning of
        `tf.data` is off unless the dataset's options turn it on, because it delays the end of each
        epoch.
        """
        return self.run.dataset(dataset_fn)

    def eval_dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """The dataset for `validation_data`: as `dataset`, and without any repeated example."""
        return self.run.eval_dataset(dataset_fn)

    def callbacks(
        self,
        output_dir: str,
        *,
        batch_size: int | None = None,
        keep: int = 5,
        save_steps: int | None = None,
    ) -> list[tf.keras.callbacks.Callback]:
        """The callbacks of `model.fit`: the optimizer, resuming, checkpoints, and logs.

        Callbacks of your own come after these: under Horovod the logs are this rank's until the
        first of these has replaced them by those of all ranks.

        Args:
          output_dir: the directory that all tasks share; its layout is in
            `tfdist.checkpoints.output_directory`.
          batch_size: examples behind one update (`global_batch_size`); with it the logs contain
            `examples_per_second` over the cluster.
          keep: the number of checkpoints to keep.
          save_steps: save a checkpoint every so many steps, beside the one after each epoch.
        """
        from tfdist.training import callbacks

        return callbacks.standard(
            self.run, output_dir, batch_size=batch_size, keep=keep, save_steps=save_steps
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

        In a task that trains: evaluates the model as it is; every such task calls it. In the
        evaluator: evaluates each new checkpoint in `output_dir` until the training has ended, and
        returns None. `epochs` are those of the training; with them the evaluator does not mistake
        the completion marker of a shorter training for the end.
        """
        from tfdist.training import evaluator

        if not self.evaluates:
            return evaluator.evaluate(self.run, model, dataset_fn)
        if output_dir is None:
            raise UsageError(
                "output_dir",
                received=None,
                accepted="the training's output directory",
                remedy="Tell the evaluator where the checkpoints are.",
            )
        evaluator.follow(self.run, model, dataset_fn, output_dir, epochs=epochs)
        return None
