"""`Job`, the object that a training script uses.

    job = tfdist.init()
    with job.scope():
        model = build(); model.compile(SGD(job.scaled_lr(0.1)), loss)
    model.fit(job.dataset(train_input), epochs=10, callbacks=job.callbacks("/shared/run1"))

The short form is `job.fit(build_model, train_input, …)` in a function with `@tfdist.main`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from tfdist.cluster import Cluster, Task
from tfdist.errors import EXIT_OK, UsageError
from tfdist.plan import Plan
from tfdist.strategies.table import TABLE

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.coordination.preemption import Preemption
    from tfdist.strategies.base import DatasetFunction, Topology
    from tfdist.training.run import TrainingRun


class Job:
    """A training job, as one of its tasks sees it.

    Attributes:
      cluster: the job's tasks; empty for a single process and under `horovodrun`.
      task: this task.
      distribution: the job's `tfdist.strategies.base.Strategy`.
      preemption: the signals that this task has received.
      model_dir: the Estimators' output directory from TF_CONFIG; None if TF_CONFIG has none.
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

    # The task.

    @property
    def name(self) -> str:
        """The strategy's name in the table."""
        return self.distribution.name

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy` for custom loops; TensorFlow's default strategy if
        TensorFlow does not distribute the training. Not available in a task that serves.

        Raises:
          UsageError: the job's strategy supports only `fit`.
        """
        if self.plan.spec.fit_only:
            raise UsageError(
                "--strategy",
                received=f"{self.name} in a custom loop",
                accepted=", ".join(row.name for row in TABLE.values() if not row.fit_only),
                remedy="Choose one of these, or train with job.fit.",
            )
        return self.distribution.tf_strategy

    @property
    def topology(self) -> Topology:
        """The numbers of replicas and shards, and this task's shard."""
        return self.distribution.topology

    @property
    def serves(self) -> bool:
        """Whether this task only serves other tasks; it then calls `serve()` and nothing else."""
        return self.plan.serves

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator, which evaluates the training's checkpoints."""
        return self.plan.evaluates

    @property
    def is_chief(self) -> bool:
        """Whether this task writes to the output directory."""
        return self.topology.is_chief

    @property
    def num_replicas(self) -> int:
        """The number of replicas whose gradients are combined in one update; 1 if updates are
        asynchronous (`tf.distribute.Strategy.num_replicas_in_sync`)."""
        return self.topology.num_replicas

    @property
    def num_input_pipelines(self) -> int:
        """The number of shards of the training examples."""
        return self.topology.num_shards

    @property
    def input_pipeline_id(self) -> int:
        """The index of the shard that this task reads."""
        return self.topology.shard

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """The argument of this task's input function."""
        return self.topology.input_context

    @property
    def verbose(self) -> int:
        """`verbose` for Keras: a progress bar on the chief's terminal, one line per epoch if the
        chief's output goes to a file, and no output from the other tasks."""
        if not self.is_chief:
            return 0
        return 1 if sys.stdout.isatty() else 2

    # Batches, steps and the learning rate.

    def global_batch_size(self, per_replica: int) -> int:
        """The number of examples per update of the weights: `per_replica` times `num_replicas`."""
        return per_replica * self.num_replicas

    def per_replica_batch_size(self, per_task: int) -> int:
        """The batch size of one replica, from the batch size of a task.

        Raises:
          UsageError: `per_task` is not a multiple of the number of the task's replicas.
        """
        replicas = self.topology.num_local_replicas
        if per_task % replicas:
            raise UsageError(
                "batch size of a task",
                received=per_task,
                accepted=f"a multiple of {replicas}, the number of the task's replicas",
                remedy="Choose another batch size, or fewer devices.",
            )
        return per_task // replicas

    def steps_per_epoch(self, examples: int, per_replica: int) -> int:
        """The number of weight updates per epoch, if the examples are sharded one by one.

        Args:
          examples: the number of examples over the whole cluster.
          per_replica: the batch size of one replica.
        """
        shards = self.topology.num_shards
        batch = per_replica * self.topology.num_local_replicas
        steps = [-(-((examples + shard) // shards) // batch) for shard in range(shards)]
        return max(steps) if self.topology.is_synchronous else sum(steps)

    def scaled_lr(self, learning_rate: float) -> float:
        """Scales the learning rate of one replica to the global batch size.

        This is the linear scaling rule of Goyal et al. 2017 (arXiv:1706.02677). The rate is not
        scaled if updates are asynchronous or replicas average their weights, because each update
        then uses the batch of one replica. A job that resumes with a different number of replicas
        scales the checkpoint's learning rate, unless it is a schedule.
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
        """Builds, trains, saves and resumes a Keras model; make the same call in every task.

        Returns in the tasks that train. A serving task and the evaluator exit with code 0 inside
        this call when training ends. The evaluator evaluates the checkpoint of each epoch on
        `validation`.

        Args:
          build_model: takes this job and returns a compiled model; called in `scope()`.
          train_input: takes a `tf.distribute.InputContext` and returns a `tf.data.Dataset` of
            batches of the per-replica size, sharded by the context.
          epochs: the total number of epochs, including those before a restart.
          output_dir: the directory that all tasks share; see `callbacks`.
          validation: like `train_input`, for the evaluation after each epoch.
          steps_per_epoch: required for an infinite dataset.
          batch_size: examples per update (`global_batch_size`), for logging the speed.
          save_steps: see `callbacks`.
          keep: see `callbacks`.
          callbacks: your own callbacks; they run after those of tfdist.
          verbose: as in Keras; default: `Job.verbose`.

        Returns:
          Keras's `History`; its `model` is the trained model.

        Raises:
          UsageError: the strategy cannot train this model, or an evaluator has no `validation`.
          OutputError: another job writes in `output_dir`; or there are checkpoints but none is
            intact, or one could not be written.
          SystemExit: this task does not train, or `tfdist run --dry_run` has started it (code 0);
            or it was preempted (code 75).
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
                    accepted="an input function in a job with an evaluator",
                    remedy="Pass validation to job.fit, or leave the evaluator out.",
                )
            self.evaluate(model, validation, output_dir, epochs=epochs)
            sys.exit(EXIT_OK)
        if self.plan.is_dry_run:
            self.dataset(train_input)
            self.distribution.check(model)
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
        """Serves the other tasks; returns when the chief has finished."""
        self.distribution.serve()

    def scope(self) -> AbstractContextManager[Any]:
        """The scope for creating the model, its optimizer and its metrics."""
        return self.distribution.scope()

    def optimizer(self, optimizer: Any) -> Any:
        """Wraps an optimizer so that it combines the gradients of all replicas.

        Only custom loops need this: `fit` with this job's callbacks wraps the optimizer.
        """
        return self.run.wrap_optimizer(optimizer)

    def dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """The dataset for `model.fit`; call this in every training task.

        The cluster sees each example of the shards once per epoch, even if the shards have
        different sizes. Horovod and `--sync_period` need the same number of steps in every rank: a
        rank with fewer batches repeats one example for each missing batch. An infinite dataset
        needs `steps_per_epoch`, as always in Keras. The autotuning of `tf.data` is off unless the
        dataset's options turn it on, because it delays the end of each epoch.

        Args:
          dataset_fn: takes a `tf.distribute.InputContext` and returns a `tf.data.Dataset` of
            batches of the per-replica size, sharded by the context.
        """
        return self.run.dataset(dataset_fn)

    def eval_dataset(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        """The dataset for `validation_data`: like `dataset`, but repeats no example."""
        return self.run.eval_dataset(dataset_fn)

    def callbacks(
        self,
        output_dir: str,
        *,
        batch_size: int | None = None,
        keep: int = 5,
        save_steps: int | None = None,
    ) -> list[tf.keras.callbacks.Callback]:
        """The callbacks for `model.fit`: wrap the optimizer, resume, save checkpoints, and log.

        Put your own callbacks after these. Under Horovod the first of these callbacks replaces this
        rank's metrics in the logs with those of all ranks.

        Args:
          output_dir: the directory that all tasks share; `tfdist.checkpoints.output_directory`
            describes its layout.
          batch_size: examples per update (`global_batch_size`); adds the cluster's
            `examples_per_second` to the logs.
          keep: the number of checkpoints to keep.
          save_steps: number of steps between checkpoints within an epoch; default: save only at
            the end of each epoch.

        Raises:
          UsageError: the chief cannot write in `output_dir`, or TensorFlow would interpret it as a
            pattern.
          OutputError: another job writes there.
        """
        from tfdist.training import callbacks

        if self.plan.is_dry_run:
            raise UsageError(
                "--dry_run",
                received="a script that calls job.callbacks",
                accepted="a script that calls job.fit, to show the stages of its model",
                remedy="Call job.fit, which has the same callbacks.",
            )
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
        """Evaluates the model; each example counts exactly once over the cluster.

        In a training task, evaluates the current model; call it in every training task. In the
        evaluator, evaluates each new checkpoint in `output_dir` until training ends.

        Args:
          model: the compiled model.
          dataset_fn: see `dataset`.
          output_dir: the training's output directory; required in the evaluator.
          epochs: the number of epochs of the training. With it, the evaluator does not stop at the
            completion marker of a shorter training.

        Returns:
          The metrics by name; None in the evaluator.

        Raises:
          UsageError: the evaluator has no `output_dir`.
        """
        from tfdist.training import evaluator

        if not self.evaluates:
            return evaluator.evaluate(self.run, model, dataset_fn)
        if output_dir is None:
            raise UsageError(
                "output_dir",
                received=None,
                accepted="the training's output directory",
                remedy="Pass output_dir to job.evaluate.",
            )
        evaluator.follow(self.run, model, dataset_fn, output_dir, epochs=epochs)
        return None
