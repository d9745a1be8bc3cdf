"""`TrainingState`: the strategy, the preemption signals and the data that the callbacks share.

state = TrainingState(role, strategy, preemption, reporter)
model.fit(state.dataset(train_input), callbacks=callbacks.standard(state, output_dir, …))
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat import building, denominators, metric_states, replaced, train_functions, versions
from tfdist.compat import keras as keras_compat
from tfdist.config.role import TaskRole
from tfdist.config.strategies import table
from tfdist.config.strategies.rows import AccumulationOptions
from tfdist.coordination.liveness.reporter import Reporter
from tfdist.coordination.preemption import Preemption
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.data.inputs import Data
from tfdist.errors import UsageError, log
from tfdist.process.precision import FLOAT32
from tfdist.strategies.base import Strategy
from tfdist.training import accumulation, data_checks, declarations, dynamic_tables
from tfdist.training.training_data import TrainingData
from tfdist.upstream import (
    keras2_plain_sgd,
    keras3_repeated_rows,
    keras3_sparse_adagrad,
    keras_denominators,
    keras_output_dtype,
    onednn_empty_batches,
    replica_threads,
    step_without_batch,
)

_WRAPPED = "_tfdist_is_wrapped"


class TrainingState:
    """The state of a job's training in one task.

    Args:
      role: the role of this task.
      strategy: the job's strategy.
      preemption: the signals that this task has received.
      reporter: reports what this task does.

    Attributes:
      data: the data of the last call of `dataset`; None before the first call.
      scales_learning_rate: whether the script scales its learning rate by the number of replicas.
      is_saved: whether tfdist's callbacks save the training, or the script's own loop may; None
        until the script has done anything for a training.
    """

    def __init__(
        self,
        role: TaskRole,
        strategy: Strategy[Any],
        preemption: Preemption,
        reporter: Reporter,
    ) -> None:
        self.role = role
        self.strategy = strategy
        self.preemption = preemption
        self.reporter = reporter
        # Made here, so that a task tells the others if it ends without any call.
        self._agreement = strategy.agreement
        self.data: TrainingData | None = None
        self.scales_learning_rate = False
        self.is_saved: bool | None = None
        # The steps of the whole training; 0 if they are not known.
        self.goal = 0
        self._described: Sequence[str] = ()
        # The steps of the training minus those that the cursor has counted.
        self._offset = 0
        replica_threads.apply()
        if strategy.topology.num_replicas > 1:
            onednn_empty_batches.apply()
        if not role.spec.workers_read_data:  # Those workers' steps have a condition.
            step_without_batch.apply()

    @property
    def is_chief(self) -> bool:
        """Whether this task writes to the output directory."""
        return self.strategy.topology.is_chief

    def dataset(self, data: Data, batch_size: int | None = None) -> tf.data.Dataset:
        """The dataset for `model.fit`; see `tfdist.Job.dataset`."""
        feed = self._feed(data, trains=True, batch_size=batch_size)
        shard = feed.batches
        self._agreement.check(
            "job.dataset",
            lambda: declarations.of_data(data, shard),
            remedy=declarations.SAME_DATA,
        )
        data_checks.check_batched(shard)
        dataset = self._distribute(feed)
        data_checks.warn_if_not_sharded(feed, self.strategy.topology)
        data_checks.warn_if_too_few(self.strategy, int(shard.cardinality()))
        self.data = TrainingData(
            feed,
            dataset.element_spec,
            int(dataset.cardinality()),
            self.strategy.topology if self.role.spec.workers_read_data else None,
        )
        return dataset

    def call_data(self, method: str) -> None:
        """Calls a method of the user's training data if it has one of this name.

        Keras calls `on_epoch_begin` and `on_epoch_end` of a `keras.utils.PyDataset`.
        """
        if self.data is not None:
            getattr(self.data.feed.data, method, lambda: None)()

    def warn_if_unsaved(self) -> None:
        """Warns, when the process ends, that its training was not saved."""
        if self.is_saved is False and self.is_chief and not self.role.evaluates:
            log(
                "warning: tfdist has saved nothing: the script called neither job.fit nor "
                "model.fit(…, callbacks=job.callbacks(output_dir))"
            )

    def eval_dataset(self, data: Data, batch_size: int | None = None) -> tf.data.Dataset:
        """The dataset for `model.evaluate`, or for the validation of `model.fit`."""
        return self._distribute(self._feed(data, trains=False, batch_size=batch_size))

    @property
    def accumulate_steps(self) -> int:
        """The number of batches of a replica in one update of the weights."""
        options = self.role.options
        return options.accumulate_steps if isinstance(options, AccumulationOptions) else 1

    @property
    def batches_per_update(self) -> int:
        """The number of per-replica batches whose gradients are combined in one update."""
        return self.strategy.topology.num_replicas * self.accumulate_steps

    @property
    def examples_per_update(self) -> int | None:
        """The number of examples of a weight update; None if it is unknown."""
        if self.data is None or self.data.feed.batch_size is None:
            return None
        return self.data.feed.batch_size * self.batches_per_update

    @property
    def steps(self) -> int:
        """The number of weight updates of this training, including those before a restart.

        Optimizers do not tell: a train step may have several, and may hide them from the model.
        """
        return self._offset + self.strategy.cursor.steps_made

    def start_counting(self, steps: int) -> None:
        """Starts to count the weight updates of a training.

        Args:
          steps: the updates in the checkpoint from which the training resumes.
        """
        self._offset = steps - self.strategy.cursor.steps_made

    def count_steps(self) -> int:
        """Counts the steps per epoch by reading this task's shard once.

        Every training task must call it.
        """
        assert self.data is not None
        shard = self.data.feed.shard(self.strategy.topology.input_context)
        batches = self.strategy.gather(sharding.count_batches(shard))
        return sharding.steps_of(batches, self.strategy.topology.num_local_replicas)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Makes an optimizer combine the gradients of all replicas, in place; returns it.

        A second call does nothing.

        Raises:
          TypeError: the strategy has returned another object.
        """
        if not _is_wrapped(optimizer):
            if keras_compat.is_keras_3(optimizer):
                keras3_repeated_rows.apply()
                keras3_sparse_adagrad.apply()
            else:
                keras2_plain_sgd.apply()
            with self.strategy.scope():
                wrapped = self.strategy.wrap_optimizer(optimizer)
            if wrapped is not optimizer:
                name = type(self.strategy).__name__
                raise TypeError(f"{name}.wrap_optimizer must return the optimizer itself, changed.")
            replaced.replace(optimizer, _WRAPPED, True)
        return optimizer

    def keep_outputs_float32(self, model: tf.keras.Model) -> bool:
        """With `--precision`, makes the output layers of a model compute in float32.

        Returns:
          False if only the model itself knows its output layers, so that the script must do it.
        """
        return self.role.flags.precision == FLOAT32 or keras_output_dtype.apply(model)

    def build(self, model: tf.keras.Model) -> None:
        """Creates the variables of a compiled model, if its inputs are known.

        Raises:
          UsageError: the model has no `call`, and a layer that is not built.
        """
        self.keep_outputs_float32(model)
        with self.strategy.scope():
            building.build_model(model, self.data.element_spec if self.data else None)

    def prepare(self, model: tf.keras.Model) -> None:
        """Builds a compiled model, has the strategy prepare it, and wraps its optimizer.

        Call this before the first step.

        Raises:
          UsageError: the strategy cannot train this model.
        """
        peers = self.strategy.topology.peers
        versions.check_fit(table.row(self.strategy.name), model, tf.__version__)
        for optimizer in keras_compat.optimizers_of(model):
            versions.check_same_keras(model, optimizer)
        train_functions.forget(model)
        replaced.at_end(functools.partial(train_functions.forget, model))
        if len(peers) > 1 and getattr(model, "autotune_steps_per_execution", False):
            raise UsageError(
                "steps_per_execution",
                received="auto",
                accepted=f"a number, because {len(peers)} tasks train together",
                remedy="Pass a number to model.compile: with 'auto' each task chooses its own "
                "number, but all tasks must save after the same step.",
            )
        self.build(model)
        dynamic_tables.distribute(
            model,
            self.strategy,
            is_shared=self.role.spec.shares_variables,
            is_loop=self.accumulate_steps > 1,
            given=self.role.flags.given("delta_steps"),
        )
        if not self.keep_outputs_float32(model) and self.is_chief:
            log(
                f"precision: only {type(model).__name__} itself knows its output layers; "
                "create them with dtype='float32'"
            )
        self.strategy.prepare(model)
        described = [*self.strategy.describe(model), *dynamic_tables.describe(model)]
        if described != self._described:
            for line in described:
                log(f"{self.strategy.name}: {line}")
        self._described = described
        self._make_exact(model)
        if self.accumulate_steps > 1:
            if self.data is None or self.data.feed.batch_size is None:
                raise UsageError(
                    "--accumulate_steps",
                    received=f"{self.accumulate_steps}, with data that is not from job.dataset",
                    accepted="training data from job.dataset",
                    remedy="Pass job.dataset(…) to fit, or leave the flag out.",
                )
            accumulation.accumulate(
                model,
                self.data.feed.batch_size,
                self.accumulate_steps,
                reads_once=self.role.spec.shares_variables,
            )
        # A MultiOptimizer of Keras 3 knows the optimizers in it when it is built.
        building.build_optimizers(model)
        self._wrap_optimizers_of(model)
        model.make_train_function(force=True)  # `fit` has made one already.

    @contextmanager
    def evaluating(self, model: tf.keras.Model) -> Iterator[None]:
        """In this block, evaluating the model gives the same results as the validation in `fit`."""
        with replaced.fitting():
            if self._make_exact(model):
                replaced.replace(model, "test_function", None)
            yield

    def _make_exact(self, model: tf.keras.Model) -> bool:
        """Lets the metrics of a model only add to their states, and its steps know by what their
        losses are divided, where replicas can differ in that; returns whether its steps are new."""
        topology = self.strategy.topology
        shares_variables = self.role.spec.shares_variables
        # Otherwise, the losses and metrics are those of the whole batch.
        sums_metric_states = topology.num_replicas > 1 and not topology.joins_batches
        if shares_variables or sums_metric_states:
            metric_states.require_additions(
                model, self.strategy.name, shares_variables=shares_variables
            )
        if not sums_metric_states or topology.averages_weights or not topology.is_synchronous:
            return False
        settings = denominators.Settings(
            batch_size=self.data.feed.batch_size if self.data else None,
            replicas=topology.num_replicas,
            states=functools.partial(self.strategy.states_of_replica, model),
            sums=self.strategy.sum_of_step,
            is_loop=self.accumulate_steps > 1,
            says=self.is_chief,
        )
        return keras_denominators.weigh(model, settings)

    def _feed(self, data: Data, *, trains: bool, batch_size: int | None) -> Feed:
        return Feed(
            data,
            self.strategy.topology.input_context,
            trains=trains,
            batch_size=batch_size,
            reads_here=not self.role.spec.workers_read_data,
            accumulate_steps=self.accumulate_steps if trains else 1,
        )

    def _distribute(self, feed: Feed) -> tf.data.Dataset:
        dataset = self.strategy.distribute(feed)
        self.strategy.cursor.follow(dataset)
        return dataset

    def _wrap_optimizers_of(self, model: tf.keras.Model) -> None:
        for optimizer in keras_compat.optimizers_of(model):
            inner = getattr(optimizer, "inner_optimizer", None)
            # In Keras 2, wrapping a wrapped inner optimizer again changes nothing.
            is_around = keras_compat.is_keras_3(model) and inner is not None and _is_wrapped(inner)
            if is_around and not _is_wrapped(optimizer):
                raise UsageError(
                    "optimizer",
                    received=f"{type(optimizer).__name__} around a wrapped optimizer",
                    accepted="a Keras optimizer, which fit wraps",
                    remedy="Compile the model with the optimizer itself, without "
                    "job.wrap_optimizer.",
                )
            self.wrap_optimizer(optimizer)


def _is_wrapped(optimizer: Any) -> bool:
    return _WRAPPED in vars(optimizer)
