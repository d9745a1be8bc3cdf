"""Makes `fit` and `evaluate` of Keras 3 work with parameter servers.

    keras3.apply()       # once; models of other strategies are not affected

    strategy = PassesShards(…)
    EpochCoordinator(strategy, …)
    with strategy.scope():
        model = keras.Sequential(…)
    model.fit(job.dataset(train_input), validation_data=job.eval_dataset(eval_input))

Keras 2 schedules its steps on the strategy's coordinator and waits for them at the end of an epoch.
Keras 3 does not know coordinators and would run each step in the chief (`fit` in its `trainer.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from tfdist.compat import checks
from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replaced
from tfdist.data.sharding import shards_of
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards
from tfdist.upstream.keras3_assign_add import add_in_one_operation
from tfdist.upstream.wrapping import apply_wrapper


def check(model: Any) -> None:
    """Rejects options that Keras 3 accepts but ignores on workers.

    Raises:
      UsageError: `model.compile` or the optimizer has such an option.
    """
    checks.check_is_not_compiled_by_xla(model, "parameter_server")
    checks.check_does_not_run_eagerly(model, "parameter_server with Keras 3")
    optimizers = keras_compat.optimizers_of(model)
    for optimizer in optimizers:
        checks.check_option(optimizer, "gradient_accumulation_steps", "parameter_server")
    of_optimizers = [variable for each in optimizers for variable in each.variables]
    add_in_one_operation([*model.variables, *model.metrics_variables, *of_optimizers])


def check_training_data(dataset: Any, data: Any) -> PerWorkerShards:
    """Returns the distributed dataset of `fit` or `evaluate`.

    Args:
      dataset: what Keras has made of `data`.
      data: what the user has passed.

    Raises:
      UsageError: it is not from `job.dataset`.
    """
    if isinstance(dataset, PerWorkerShards):
        return dataset
    raise UsageError(
        "data of fit and evaluate",
        received=type(data).__name__,
        accepted="the result of job.dataset or job.eval_dataset, under parameter_server with Keras "
        "3",
        remedy="Pass a function that returns your data as a tf.data.Dataset to job.dataset.",
    )


def check_prediction_data(data: Any) -> None:
    """Checks the data of `predict`, which runs in the chief, as in Keras 2.

    Raises:
      UsageError: they are from `job.dataset`.
    """
    if shards_of(data) is not None:
        raise UsageError(
            "data of predict",
            received="the result of job.dataset or job.eval_dataset",
            accepted="a tf.data.Dataset or arrays, under parameter_server with Keras 3",
            remedy="Pass the data itself: predict runs in the chief and would see one shard.",
        )


class _Steps:
    """A train or test function that requests its steps from the coordinator.

    Calls Keras's own function for anything but an epoch, such as the batch of `train_on_batch`.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], own: Callable[[Any], Any]) -> None:
        strategy = model.distribute_strategy
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
        if not isinstance(iterator, Epoch):
            return self._own(iterator)
        EpochCoordinator(self._strategy).request(iterator, self._step, self._steps)
        return iterator.live_logs()


def _make_steps(kind: str, make: Callable[..., None], model: Any, force: bool = False) -> None:
    """Replaces `make_train_function` or `make_test_function` to create `_Steps` where needed."""
    make(model, force)
    function, step = f"{kind}_function", f"{kind}_step"
    own = getattr(model, function)
    if _is_coordinated(model.distribute_strategy) and not isinstance(own, _Steps):
        check(model)
        setattr(model, function, _Steps(model, getattr(model, step), own))


def _predict(
    predict: Callable[..., Any], model: Any, x: Any = None, *args: Any, **options: Any
) -> Any:
    """Replaces `predict` to run in the chief."""
    if not _is_coordinated(model.distribute_strategy):
        return predict(model, x, *args, **options)
    check_prediction_data(x)
    with replaced(model, "_distribute_strategy", None):
        return predict(model, x, *args, **options)


def _show_steps(end: Callable[..., None], bar: Any, epoch: int, logs: Any = None) -> None:
    """Replaces `ProgbarLogger.on_epoch_end` to show the number of steps made, not of those
    requested.

    Until the data has ended once, Keras requests more steps than are made.
    """
    strategy = bar.model.distribute_strategy
    if bar.target is None and _is_coordinated(strategy):
        training_epoch = EpochCoordinator(strategy).training_epoch
        bar.seen = 0 if training_epoch is None else training_epoch.steps_so_far()
    end(bar, epoch, logs)


class _EpochIterator(trainer.TFEpochIterator):
    """Keras's iterator, which also waits for the scheduled steps at the end of an epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._strategy: Any = kwargs.get("distribute_strategy")
        if _is_coordinated(self._strategy):
            shards = check_training_data(self._distributed_dataset, kwargs.get("x"))
            shards.steps_per_epoch = self.steps_per_epoch

    def tf_sync(self) -> None:
        super().tf_sync()
        if _is_coordinated(self._strategy):
            # If a callback stops the training, the generator is not closed.
            state = inspect.getgeneratorstate(self._epoch_iterator)
            EpochCoordinator(self._strategy).join(state == inspect.GEN_CLOSED)

    def _interrupted_warning(self) -> None:
        # Without steps_per_epoch, an epoch of unknown length always ends this way.
        if not _is_coordinated(self._strategy) or self.steps_per_epoch is not None:
            super()._interrupted_warning()


def _is_coordinated(strategy: Any) -> bool:
    return isinstance(strategy, PassesShards)


def apply() -> None:
    """Patches Keras 3 to train models under `PassesShards`."""
    for kind in ("train", "test"):
        apply_wrapper(keras.Model, f"make_{kind}_function", partial(_make_steps, kind))
    apply_wrapper(keras.Model, "predict", _predict)
    apply_wrapper(keras.callbacks.ProgbarLogger, "on_epoch_end", _show_steps)
    trainer.TFEpochIterator = _EpochIterator
