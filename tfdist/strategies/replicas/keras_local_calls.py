"""Lets a task of MultiWorkerMirroredStrategy predict, evaluate and save without the other tasks.

    apply(tf.keras.Model, strategy_class, is_distributed)
    model.predict(features)             # in any task

Under this strategy, `predict` and `evaluate` split their data between the tasks and wait for all of
them, so the usual `if is_chief: model.predict(…)` never returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import all_replaced, replace
from tfdist.strategies.replicas import sync_on_read
from tfdist.upstream.wrapping import apply_wrapper

# The functions that a model has traced without its strategy.
_LOCAL = "_tfdist_local_functions"
_FUNCTIONS = ("predict_function", "test_function")
# Keras passes it to the evaluation inside `fit`, which is distributed.
_IN_FIT = "_use_cached_eval_dataset"


def apply(model_class: Any, strategy_class: type, is_distributed: Callable[[Any], bool]) -> None:
    """Makes `predict` and `evaluate` of models under a strategy compute in the calling task alone.

    Args:
      model_class: `tf.keras.Model`.
      strategy_class: the class of the strategy.
      is_distributed: takes the data; returns whether all tasks make the call, each with its share.
    """
    for name in ("predict", "evaluate"):
        apply_wrapper(model_class, name, partial(_locally, strategy_class, is_distributed))


def _locally(
    strategy_class: type,
    is_distributed: Callable[[Any], bool],
    method: Callable[..., Any],
    model: Any,
    x: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    if not isinstance(model.distribute_strategy, strategy_class):
        return method(model, x, *args, **options)
    # Keras 2 calls callbacks in the strategy's scope, where no other strategy can begin.
    if tf.distribute.has_strategy() or options.get(_IN_FIT) or is_distributed(x):
        with sync_on_read.own_values(False):
            return method(model, x, *args, **options)
    with _without_strategy(model), sync_on_read.own_values(True):
        return method(model, x, *args, **options)


@contextmanager
def _without_strategy(model: Any) -> Iterator[None]:
    """In this block, a model has no strategy, as in Keras 2's `predict` with parameter servers."""
    is_keras_3 = keras_compat.is_keras_3(model)
    attribute = "_distribute_strategy" if is_keras_3 else "_distribution_strategy"
    local = getattr(model, _LOCAL, {})
    changes = {attribute: None, **{name: local.get(name) for name in _FUNCTIONS}}
    with all_replaced((model, *change) for change in changes.items()):
        yield
        local = {name: getattr(model, name) for name in _FUNCTIONS}
    replace(model, _LOCAL, local)
