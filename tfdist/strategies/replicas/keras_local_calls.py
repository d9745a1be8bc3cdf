"""Lets a task of MultiWorkerMirroredStrategy predict, evaluate and save without the other tasks.

    apply(model, is_distributed)        # in every task, before the first step
    model.predict(features)             # in any task

Under this strategy, `predict` and `evaluate` split their data between the tasks and wait for all of
them, so the usual `if is_chief: model.predict(…)` never returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.strategies.replicas import sync_on_read

_APPLIED = "_tfdist_calls_locally"
_FUNCTIONS = ("predict_function", "test_function")
# Keras passes it to the evaluation inside `fit`, which is distributed.
_IN_FIT = "_use_cached_eval_dataset"


def apply(model: Any, is_distributed: Callable[[Any], bool]) -> None:
    """Makes `predict` and `evaluate` of a model compute in the calling task alone.

    Args:
      model: a compiled Keras model.
      is_distributed: takes the data; returns whether all tasks make the call, each with its share.
    """
    if _APPLIED in vars(model):
        return
    vars(model)[_APPLIED] = True
    functions: dict[str, Any] = dict.fromkeys(_FUNCTIONS)
    for name in ("predict", "evaluate"):
        vars(model)[name] = _locally(model, getattr(model, name), functions, is_distributed)


def _locally(
    model: Any,
    method: Callable[..., Any],
    functions: dict[str, Any],
    is_distributed: Callable[[Any], bool],
) -> Callable[..., Any]:
    def call(x: Any = None, *args: Any, **options: Any) -> Any:
        # Keras 2 calls callbacks in the strategy's scope, where no other strategy can begin.
        if tf.distribute.has_strategy() or options.get(_IN_FIT) or is_distributed(x):
            with sync_on_read.own_values(False):
                return method(x, *args, **options)
        with _without_strategy(model, functions), sync_on_read.own_values(True):
            return method(x, *args, **options)

    return call


@contextmanager
def _without_strategy(model: Any, functions: dict[str, Any]) -> Iterator[None]:
    """Takes the strategy from a model, as Keras 2 does in `predict` with parameter servers."""
    is_keras_3 = keras_compat.is_keras_3(model)
    attribute = "_distribute_strategy" if is_keras_3 else "_distribution_strategy"
    strategy = getattr(model, attribute)
    distributed = {name: getattr(model, name) for name in _FUNCTIONS}

    def use(strategy: Any, functions: dict[str, Any]) -> None:
        setattr(model, attribute, strategy)
        for name, function in functions.items():
            setattr(model, name, function)

    use(None, functions)
    try:
        yield
    finally:
        functions.update({name: getattr(model, name) for name in _FUNCTIONS})
        use(strategy, distributed)
