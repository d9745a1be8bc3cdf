"""`Job`, the object that a training script uses.

    job = tfdist.init()
    with job.scope():
        model = build(); model.compile(SGD(job.scaled_lr(0.1)), loss)
    model.fit(job.dataset(train_input), epochs=10, callbacks=job.callbacks("/shared/run1"))

The short form is `job.fit(build_model, train_input, …)` in a function with `@tfdist.main`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from tfdist.cluster import Cluster, Task
from tfdist.config.role import TaskRole
from tfdist.config.strategies import table
from tfdist.coordination.liveness.activity import SERVING
from tfdist.data.signature import takes_argument
from tfdist.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.data.inputs import Data
    from tfdist.strategies.base import Topology
    from tfdist.training.state import TrainingState

#: The class of an optimizer, of Keras or TensorFlow 1.
Optimizer = TypeVar("Optimizer")


class Job:
    """A training job, as one of its tasks sees it.

    Attributes:
      cluster: the job's tasks; empty for a single process and under `horovodrun`.
      task: this task.
    """

    def __init__(self, role: TaskRole, state: TrainingState) -> None:
        self._role = role
        self._state = state
        self._strategy = state.strategy
        self.cluster: Cluster = role.cluster
        self.task: Task = role.task

    # The task.

    @property
    def name(self) -> str:
        """The strategy's name in the table."""
        return self._strategy.name

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy` for custom loops; TensorFlow's default strategy if
        TensorFlow does not distribute the training. Not available in a task that serves.

        Raises:
          UsageError: the job's strategy supports only `fit`.
        """
        if self._role.spec.fit_only:
            raise UsageError(
                "--strategy",
                received=f"{self.name} in a custom loop",
                accepted=", ".join(row.name for row in table.rows().values() if not row.fit_only),
                remedy="Choose one of these, or train with job.fit.",
            )
        self._state.is_saved = True  # A loop of the script may save.
        return self._strategy.tf_strategy

    @property
    def topology(self) -> Topology:
        """The numbers of replicas and shards, and this task's shard."""
        return self._strategy.topology

    @property
    def serves(self) -> bool:
        """Whether this task only serves other tasks; it then calls `serve()` and nothing else."""
        return self._role.serves

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator, which evaluates the training's checkpoints."""
        return self._role.evaluates

    @property
    def is_chief(self) -> bool:
        """Whether this task writes to the output directory."""
        return self.topology.is_chief

    @property
    def num_replicas(self) -> int:
        """The number of replicas whose gradients are combined in one update; 1 if updates are
        asynchronous.

        A custom train step must not divide its loss by it: where tfdist averages the gradients,
        the loss is the mean over the replica's batch. `tf.nn.compute_average_loss` and
        `tf.distribute.get_strategy().num_replicas_in_sync` are right under every strategy.
        """
        return self.topology.num_replicas

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """The argument of this task's input function: the number of shards, the index of the shard
        that this task reads, and the number of replicas."""
        return self.topology.input_context

    # Batches, steps and the learning rate.

    def global_batch_size(self, per_replica: int) -> int:
        """The number of examples per update of the weights: `per_replica` times `num_replicas`, and
        times `--accumulate_steps`."""
        return per_replica * self._state.batches_per_update

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
        batch = per_replica * self.topology.num_local_replicas * self._state.accumulate_steps
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
        self._state.scales_learning_rate = True
        return learning_rate * self._state.batches_per_update

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of all replicas in a step, for losses that compare the examples of a batch.

        A replica sees only its own rows, so a softmax over the candidates of a batch has fewer
        negatives than in one process. With `job.gather(candidates)` it has those of the whole
        batch, and the weights become those of one process. Call it in the model, its loss or its
        train step. One process, a prediction, an evaluation in which each task has its own steps
        (Horovod), and a custom loop return `rows`.

        Args:
          rows: a tensor of numbers, shape [n, …]; replicas may have different n.

        Returns:
          The rows of this replica, then those of the other ones: the example of row i stays in row
          i. Gradients flow back to the replicas that the rows come from.

        Raises:
          UsageError: an update does not wait for all replicas (asynchronous servers, backups,
            `--sync_period`); with `--accumulate_steps`; in a loop or a condition.
        """
        from tfdist.training import global_batch

        return global_batch.of_all_replicas(self._strategy, rows)

    # The short form.

    def fit(
        self,
        build_model: Callable[[Job], tf.keras.Model] | Callable[[], tf.keras.Model],
        train_input: Data,
        *,
        epochs: int,
        output_dir: str | None = None,
        validation: Data | None = None,
        steps_per_epoch: int | None = None,
        save_steps: int | None = None,
        keep: int = 5,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
        verbose: int | None = None,
        batch_size: int | None = None,
    ) -> tf.keras.callbacks.History:
        """Builds, trains, saves and resumes a Keras model; make the same call in every task.

        Returns in the tasks that train. A serving task and the evaluator exit with code 0 inside
        this call when training ends. The evaluator evaluates the checkpoint of each epoch on
        `validation`.

        Args:
          build_model: takes this job, or nothing, and returns a compiled model; called in
            `scope()`.
          train_input: the training data, in batches of the per-replica size; see `dataset`.
          epochs: the total number of epochs, including those before a restart.
          output_dir: the directory that all tasks share; see `callbacks`. Required.
          validation: like `train_input`, for the evaluation after each epoch.
          steps_per_epoch: updates of the weights; required for an infinite dataset.
          save_steps: see `callbacks`.
          keep: see `callbacks`.
          callbacks: your own callbacks; they run after those of tfdist.
          verbose: as in Keras. Default: a progress bar on the chief's terminal, one line per epoch
            if its output goes to a file, and no output from the other tasks.
          batch_size: the per-replica batch size of arrays; default 32. Only arrays may have it.

        Returns:
          Keras's `History`; its `model` is the trained model.

        Raises:
          UsageError: the strategy cannot train this model, the model is not compiled, or an
            argument is missing: `output_dir`, `steps_per_epoch` for infinite data, or `validation`
            with an evaluator.
          OutputError: another job writes in `output_dir`; or there are checkpoints but none is
            intact, or one could not be written.
          SystemExit: this task does not train, or `tfdist run --dry_run` has started it (code 0);
            or it was preempted (code 75).
        """
        from tfdist.training import fit

        if batch_size is not None and not isinstance(train_input, (tuple, list)):
            raise UsageError(
                "batch_size",
                received=batch_size,
                accepted="none, because a dataset has its own batch size",
                remedy="Leave it out, and call dataset.batch(size) in the input function.",
            )
        build: Any = build_model
        fit.check_is_function(build)
        return fit.fit(
            self._state,
            functools.partial(build, self) if takes_argument(build, "job") else build,
            train_input,
            epochs=epochs,
            output_dir=output_dir,
            validation=validation,
            steps_per_epoch=steps_per_epoch,
            save_steps=save_steps,
            keep=keep,
            own_callbacks=callbacks,
            verbose=verbose,
            batch_size=batch_size,
        )

    # The long form.

    def serve(self) -> None:
        """Serves the other tasks; returns when the chief has finished."""
        self._state.reporter.activity.enter(SERVING)
        self._strategy.serve()

    def scope(self) -> AbstractContextManager[object]:
        """The scope for creating the model, its optimizer and its metrics."""
        self._state.is_saved = bool(self._state.is_saved)
        return self._strategy.scope()

    def wrap_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Wraps an optimizer so that it combines the gradients of all replicas.

        Only custom loops need this: `fit` with this job's callbacks wraps the optimizer.
        """
        self._state.is_saved = True
        return self._state.wrap_optimizer(optimizer)

    def dataset(self, dataset_fn: Data) -> tf.data.Dataset:
        """The dataset for `model.fit`; call this in every training task.

        The cluster sees each example of the shards once per epoch, even if the shards have
        different sizes: a replica that has no batch left contributes nothing to an update. Only
        `--sync_period` needs an example in each step, so a rank with fewer batches repeats one. An
        infinite dataset needs `steps_per_epoch`, as always in Keras. The autotuning of `tf.data` is
        off unless the dataset's options turn it on, because it delays the end of each epoch.

        Args:
          dataset_fn: one of these, in batches of the per-replica size:

            - A function that takes a `tf.distribute.InputContext` and returns its shard, a
              `tf.data.Dataset` that is sharded by the context. Each task reads only its shard.
            - A function without a parameter that returns the whole dataset. Each task reads all of
              it and uses every n-th batch. `shuffle` without a seed has the same order in all
              tasks.
            - A `tf.data.Dataset`, likewise, if the tasks read it themselves and its order is the
              same in all tasks.
            - A `keras.utils.PyDataset`, or another object with a length and batches as its items,
              such as a `grain.MapDataset`: each task reads every n-th item. The items of a
              `PyDataset` are shuffled.
            - Arrays `(x, y)` or `(x, y, sample_weights)`: shuffled, in batches of 32 (`batch_size`
              of `fit`).

        Raises:
          UsageError: the data is something else, or the tasks cannot have different shards of it.
        """
        self._state.is_saved = bool(self._state.is_saved)
        return self._state.dataset(dataset_fn)

    def eval_dataset(self, dataset_fn: Data) -> tf.data.Dataset:
        """The dataset for `validation_data`: like `dataset`, but no example is repeated."""
        return self._state.eval_dataset(dataset_fn)

    def callbacks(
        self,
        output_dir: str,
        *,
        keep: int = 5,
        save_steps: int | None = None,
    ) -> list[tf.keras.callbacks.Callback]:
        """The callbacks for `model.fit`: wrap the optimizer, resume, save checkpoints, and log.

        Put your own callbacks after these. Under Horovod the first of these callbacks replaces this
        rank's metrics in the logs with those of all ranks.

        Args:
          output_dir: the directory that all tasks share; `tfdist.storage.output_directory`
            describes its layout.
          keep: the number of checkpoints to keep.
          save_steps: number of steps between checkpoints within an epoch; default: save only at
            the end of each epoch.

        Raises:
          UsageError: the chief cannot write in `output_dir`, or it is a URL, or TensorFlow would
            interpret it as a pattern.
          OutputError: another job writes there.
        """
        from tfdist.training import callbacks

        return callbacks.standard(self._state, output_dir, keep=keep, save_steps=save_steps)

    def warm_start(
        self,
        model: tf.keras.Model,
        output_dir: str,
        *,
        renamed: Mapping[str, str] | None = None,
        vocabularies: Mapping[str, tuple[Sequence[object], Sequence[object]]] | None = None,
    ) -> None:
        """Sets the variables of a new model to those of the same names in another training.

        Call it in `build_model`, for a built model; the log says what was found. A training that
        resumes goes on from its own checkpoint. See also `DynamicEmbedding.set_rows`.

        Args:
          model: the model.
          output_dir: the output directory of the other training, with the same Keras.
          renamed: the names that variables had, by their names now.
          vocabularies: by the name of a table, the words of its rows there and here.

        Raises:
          UsageError: there is no checkpoint, or a name is none of the model's variables.
        """
        from tfdist.training.warm_start import warm_start

        warm_start(self._state, model, output_dir, renamed or {}, vocabularies or {})

    def evaluate(
        self,
        model: tf.keras.Model,
        dataset_fn: Data,
        output_dir: str | None = None,
        *,
        epochs: int | None = None,
    ) -> dict[str, float]:
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
          The metrics by name; in the evaluator, those of the last checkpoint.

        Raises:
          UsageError: the evaluator has no `output_dir`.
        """
        from tfdist.training import evaluator

        if not self.evaluates:
            return evaluator.evaluate(self._state, model, dataset_fn)
        return evaluator.follow(self._state, model, dataset_fn, output_dir, epochs=epochs)
