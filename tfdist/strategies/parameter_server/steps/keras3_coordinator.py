"""Lets Keras 3 train with a coordinator, which schedules the steps of an epoch on workers.

    apply(Coordination)      # once; models of other strategies are not affected

Keras 2 schedules its steps on the strategy's coordinator and waits for them at the end of an epoch.
Keras 3 does not know coordinators and would run each step in the chief (`fit` in its `trainer.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer


class Coordination(Protocol):
    """What a strategy with a coordinator does in place of Keras."""

    def is_coordinated(self, strategy: Any) -> bool:
        """Whether a TensorFlow strategy has such a coordinator."""

    def takes(self, iterator: Any) -> bool:
        """Whether an iterator is an epoch of the coordinator."""

    def check(self, model: Any) -> None:
        """Checks a compiled model before its first step."""

    def request(self, strategy: Any, epoch: Any, step: Callable[[Any], Any], steps: int) -> Any:
        """Requests steps of an epoch; returns the logs."""

    def begin_epochs(self, dataset: Any, steps_per_epoch: int | None, data: Any) -> bool:
        """Takes a distributed dataset of `fit`; whether its steps are scheduled.

        Raises:
          UsageError: the strategy cannot train on it.
        """

    def join(self, strategy: Any, to_end: bool) -> None:
        """Waits for the steps of the current epoch."""

    def steps_of_training_epoch(self, strategy: Any) -> int:
        """The number of steps of the current epoch of `fit`, or of the last one."""

    def check_prediction(self, data: Any) -> None:
        """Checks the data of `predict`, which runs in the chief, as in Keras 2."""


class _Steps:
    """A train or test function that requests its steps.

    Calls Keras's own function for anything but an epoch, such as the batch of `train_on_batch`.
    """

    def __init__(
        self,
        coordination: Coordination,
        model: Any,
        step: Callable[[Any], Any],
        own: Callable[[Any], Any],
    ) -> None:
        strategy = model.distribute_strategy
        self._coordination = coordination
        self._strategy = strategy
        self._own = own
        self._steps = int(model.steps_per_execution)

        @tf.autograph.experimental.do_not_convert
        def step_on_next(iterator: Any) -> Any:
            logs = strategy.run(step, args=(next(iterator),))
            logs = trainer.reduce_per_replica(logs, strategy, reduction="auto")
            return tf.nest.map_structure(tf.convert_to_tensor, logs)

        self._step = step_on_next

    def __call__(self, iterator: Any) -> Any:
        if not self._coordination.takes(iterator):
            return self._own(iterator)
        return self._coordination.request(self._strategy, iterator, self._step, self._steps)


def _makes_steps(
    coordination: Coordination, make: Callable[..., None], function: str, step: str
) -> Callable[..., None]:
    """Wraps `make_train_function` or `make_test_function` to create `_Steps` where needed."""

    @functools.wraps(make)
    def call(model: Any, force: bool = False) -> None:
        make(model, force)
        own = getattr(model, function)
        is_coordinated = coordination.is_coordinated(model.distribute_strategy)
        if is_coordinated and not isinstance(own, _Steps):
            coordination.check(model)
            setattr(model, function, _Steps(coordination, model, getattr(model, step), own))

    return call


def _predicts_here(coordination: Coordination, predict: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `predict` to run in the chief."""

    @functools.wraps(predict)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = model.distribute_strategy
        if not coordination.is_coordinated(strategy):
            return predict(model, *args, **kwargs)
        coordination.check_prediction(args[0] if args else kwargs.get("x"))
        model._distribute_strategy = None
        try:
            return predict(model, *args, **kwargs)
        finally:
            model._distribute_strategy = strategy

    return call


def _shows_steps(
    coordination: Coordination, end: Callable[..., None]
) -> Callable[[Any, int, Any], None]:
    """Wraps the end of an epoch of the progress bar, which counts the requests for steps.

    Until the first end of the data, there are more of these than steps.
    """

    @functools.wraps(end)
    def call(bar: Any, epoch: int, logs: Any = None) -> None:
        strategy = bar.model.distribute_strategy
        if bar.target is None and coordination.is_coordinated(strategy):
            bar.seen = coordination.steps_of_training_epoch(strategy)
        end(bar, epoch, logs)

    return call


def _epoch_iterator(coordination: Coordination) -> type[trainer.TFEpochIterator]:
    """Keras's iterator, which also waits for the scheduled steps at the end of an epoch."""

    class EpochIterator(trainer.TFEpochIterator):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._strategy = kwargs.get("distribute_strategy")
            self._is_coordinated = coordination.is_coordinated(
                self._strategy
            ) and coordination.begin_epochs(
                self._distributed_dataset, self.steps_per_epoch, kwargs.get("x")
            )

        def tf_sync(self) -> None:
            super().tf_sync()
            if self._is_coordinated:
                # If a callback stops the training, the generator is not closed.
                state = inspect.getgeneratorstate(self._epoch_iterator)
                coordination.join(self._strategy, state == inspect.GEN_CLOSED)

        def _interrupted_warning(self) -> None:
            # Without steps_per_epoch, an epoch of unknown length always ends this way.
            if not self._is_coordinated or self.steps_per_epoch is not None:
                super()._interrupted_warning()

    return EpochIterator


@functools.cache
def apply(coordination: Coordination) -> None:
    """Patches Keras 3 to train models of the strategies that are coordinated."""
    model = keras.Model
    model.make_train_function = _makes_steps(
        coordination, model.make_train_function, "train_function", "train_step"
    )
    model.make_test_function = _makes_steps(
        coordination, model.make_test_function, "test_function", "test_step"
    )
    model.predict = _predicts_here(coordination, model.predict)
    bar = keras.callbacks.ProgbarLogger
    bar.on_epoch_end = _shows_steps(coordination, bar.on_epoch_end)
    trainer.TFEpochIterator = _epoch_iterator(coordination)
