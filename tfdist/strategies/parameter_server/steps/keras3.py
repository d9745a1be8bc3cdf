"""Makes `fit` and `evaluate` of Keras 3 work with parameter servers.

    keras3.apply()

    strategy = PassesShards(…)
    EpochCoordinator(strategy, …)
    with strategy.scope():
        model = keras.Sequential(…)
    model.fit(job.dataset(train_input), validation_data=job.eval_dataset(eval_input))

Keras 2 schedules its steps on the strategy's coordinator and waits for them at the end of an epoch.
Keras 3 does not know coordinators and would run each step in the chief.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from tfdist.data.sharding import shards_of
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import DistributedShards
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards
from tfdist.upstream.keras3_assign_add import add_in_one_operation


class _Steps:
    """A train or test function that schedules its steps on the workers.

    Calls Keras's own function for anything but an epoch, such as the batch of `train_on_batch`.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], own: Callable[[Any], Any]) -> None:
        strategy = model.distribute_strategy
        self._coordinator = EpochCoordinator(strategy)
        self._own = own
        self._steps = int(model.steps_per_execution)

        @tf.autograph.experimental.do_not_convert
        def step_on_next(iterator: Any) -> Any:
            logs = strategy.run(step, args=(next(iterator),))
            logs = trainer.reduce_per_replica(logs, strategy, reduction="auto")
            return tf.nest.map_structure(tf.convert_to_tensor, logs)

        self._step = step_on_next

    def __call__(self, iterator: Any) -> Any:
        if not isinstance(iterator, Epoch):
            return self._own(iterator)
        self._coordinator.request(iterator, self._step, self._steps)
        return iterator.live_logs()


def _makes_steps(make: Callable[..., None], function: str, step: str) -> Callable[..., None]:
    """Wraps `make_train_function` or `make_test_function` to create `_Steps` where needed."""

    @functools.wraps(make)
    def call(model: Any, force: bool = False) -> None:
        make(model, force)
        own = getattr(model, function)
        if isinstance(model.distribute_strategy, PassesShards) and not isinstance(own, _Steps):
            _check(model)
            add_in_one_operation(_variables(model))
            setattr(model, function, _Steps(model, getattr(model, step), own))

    return call


def _predicts_here(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `predict` to run in the chief, as in Keras 2."""

    @functools.wraps(predict)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = model.distribute_strategy
        if not isinstance(strategy, PassesShards):
            return predict(model, *args, **kwargs)
        if shards_of(args[0] if args else kwargs.get("x")) is not None:
            raise UsageError(
                "data of predict",
                received="the result of job.dataset or job.eval_dataset",
                accepted="a tf.data.Dataset or arrays, under parameter_server with Keras 3",
                remedy="Pass the data itself: predict runs in the chief and would see one shard.",
            )
        model._distribute_strategy = None
        try:
            return predict(model, *args, **kwargs)
        finally:
            model._distribute_strategy = strategy

    return call


class _EpochIterator(trainer.TFEpochIterator):
    """Keras's iterator, which also waits for the scheduled steps at the end of an epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dataset = self._distributed_dataset
        self._is_coordinated = isinstance(dataset, DistributedShards)
        if self._is_coordinated:
            dataset.steps_per_epoch = self.steps_per_epoch
        elif isinstance(self._distribute_strategy, PassesShards):
            raise UsageError(
                "data of fit and evaluate",
                received=type(kwargs.get("x")).__name__,
                accepted="the result of job.dataset or job.eval_dataset, under parameter_server "
                "with Keras 3",
                remedy="Pass a function that returns your data as a tf.data.Dataset to "
                "job.dataset.",
            )

    def tf_sync(self) -> None:
        super().tf_sync()
        if self._is_coordinated:
            # If a callback stops the training, the generator is not closed.
            is_finished = inspect.getgeneratorstate(self._epoch_iterator) == inspect.GEN_CLOSED
            EpochCoordinator(self._distribute_strategy).join(to_end=is_finished)

    def _interrupted_warning(self) -> None:
        # Without steps_per_epoch, an epoch of unknown length always ends this way.
        if not self._is_coordinated or self.steps_per_epoch is not None:
            super()._interrupted_warning()


def _check(model: Any) -> None:
    """Rejects options that Keras 3 accepts but ignores on workers.

    Raises:
      UsageError: `model.compile` or the optimizer has such an option.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    options = {
        "jit_compile": (bool(model.jit_compile), False),
        "run_eagerly": (bool(model.run_eagerly), False),
        "gradient_accumulation_steps": (
            getattr(optimizer, "gradient_accumulation_steps", None),
            None,
        ),
    }
    for field, (received, accepted) in options.items():
        if received != accepted:
            raise UsageError(
                field,
                received=received,
                accepted=f"{accepted} under parameter_server with Keras 3",
                remedy="Leave it out of model.compile and of the optimizer.",
            )


def _variables(model: Any) -> list[Any]:
    of_optimizer = model.optimizer.variables if model.optimizer is not None else []
    return [*model.variables, *model.metrics_variables, *of_optimizer]


@functools.cache
def apply() -> None:
    """Patches Keras 3 to train models under `PassesShards`; other models are not affected."""
    keras.Model.make_train_function = _makes_steps(
        keras.Model.make_train_function, "train_function", "train_step"
    )
    keras.Model.make_test_function = _makes_steps(
        keras.Model.make_test_function, "test_function", "test_step"
    )
    keras.Model.predict = _predicts_here(keras.Model.predict)
    trainer.TFEpochIterator = _EpochIterator
