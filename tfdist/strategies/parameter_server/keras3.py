"""What Keras 3 needs to train with parameter servers.

    keras3.apply()

    strategy = PassesShards(…)
    EpochCoordinator(strategy)
    with strategy.scope():
        model = keras.Sequential(…)
    model.fit(job.dataset(train_input), validation_data=job.eval_dataset(eval_input))

Keras 2 asks a strategy for its coordinator, gives that the steps, and waits for them at the end of
an epoch. Keras 3 knows nothing of coordinators and would make each step itself, in the chief.
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
from tfdist.strategies.parameter_server.coordinator import (
    DistributedShards,
    Epoch,
    EpochCoordinator,
    PassesShards,
)
from tfdist.upstream.keras3_assign_add import add_in_one_operation


class _Steps:
    """Keras's train or test function, for a model whose steps the workers make.

    Keras's own remains for what is not an epoch, such as the batch of `train_on_batch`.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], own: Callable[[Any], Any]) -> None:
        strategy = model.distribute_strategy
        self._coordinator = EpochCoordinator(strategy)
        self._own = own

        @tf.function
        @tf.autograph.experimental.do_not_convert
        def step_on_next(iterator: Any) -> Any:
            logs = strategy.run(step, args=(next(iterator),))
            logs = trainer.reduce_per_replica(logs, strategy, reduction="auto")
            return tf.nest.map_structure(tf.convert_to_tensor, logs)

        self._step = step_on_next

    def __call__(self, iterator: Any) -> Any:
        if not isinstance(iterator, Epoch):
            return self._own(iterator)
        self._coordinator.schedule(self._step, (iterator,))
        return iterator.live_logs()


def _makes_steps(make: Callable[..., None], function: str, step: str) -> Callable[..., None]:
    """`make_train_function`, or that for tests, which makes `_Steps` where they are needed."""

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
    """`predict`, which runs in the chief, as that of Keras 2 does."""

    @functools.wraps(predict)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = model.distribute_strategy
        if not isinstance(strategy, PassesShards):
            return predict(model, *args, **kwargs)
        if shards_of(args[0] if args else kwargs.get("x")) is not None:
            raise UsageError(
                "data of predict",
                received="what job.dataset or job.eval_dataset returns",
                accepted="data of the chief's own, under parameter_server with Keras 3",
                remedy="Give it the tf.data.Dataset or the arrays: it would see one shard alone.",
            )
        model._distribute_strategy = None
        try:
            return predict(model, *args, **kwargs)
        finally:
            model._distribute_strategy = strategy

    return call


class _EpochIterator(trainer.TFEpochIterator):
    """Keras's own, which waits at the end of an epoch for the steps that were scheduled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dataset = self._distributed_dataset
        self._is_coordinated = isinstance(dataset, DistributedShards)
        if self._is_coordinated:
            dataset.has_steps = self.steps_per_epoch is not None
        elif isinstance(self._distribute_strategy, PassesShards):
            raise UsageError(
                "data of fit and evaluate",
                received=type(kwargs.get("x")).__name__,
                accepted="what job.dataset and job.eval_dataset return, under parameter_server "
                "with Keras 3",
                remedy="Give them a function that returns a tf.data.Dataset of your data.",
            )

    def tf_sync(self) -> None:
        super().tf_sync()
        if self._is_coordinated:
            # A callback that stops the training leaves the generator where it was.
            is_through = inspect.getgeneratorstate(self._epoch_iterator) == inspect.GEN_CLOSED
            EpochCoordinator(self._distribute_strategy).join(to_end=is_through)

    def _interrupted_warning(self) -> None:
        # Without a number of steps every epoch whose length is not yet known ends so.
        if not self._is_coordinated or self.steps_per_epoch is not None:
            super()._interrupted_warning()


def _check(model: Any) -> None:
    """Refuses what Keras 3 would take and not do on workers.

    Raises:
      UsageError: it was asked for in `model.compile` or of the optimizer.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    asked = {
        "steps_per_execution": (model.steps_per_execution, 1),
        "jit_compile": (bool(model.jit_compile), False),
        "run_eagerly": (bool(model.run_eagerly), False),
        "gradient_accumulation_steps": (
            getattr(optimizer, "gradient_accumulation_steps", None),
            None,
        ),
    }
    for field, (received, accepted) in asked.items():
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
    """Lets models of Keras 3 train under `PassesShards`; of no effect on other models."""
    keras.Model.make_train_function = _makes_steps(
        keras.Model.make_train_function, "train_function", "train_step"
    )
    keras.Model.make_test_function = _makes_steps(
        keras.Model.make_test_function, "test_function", "test_step"
    )
    keras.Model.predict = _predicts_here(keras.Model.predict)
    trainer.TFEpochIterator = _EpochIterator
