"""Applies wrappers of v1 optimizers to Keras optimizers, for `model_to_estimator`.

optimizer = distributed(tf.keras.optimizers.SGD(0.1), hvd.DistributedOptimizer)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.upstream import keras_legacy_optimizer

Wrap = Callable[[tf.compat.v1.train.Optimizer], tf.compat.v1.train.Optimizer]


_undistributed = ContextVar("_undistributed", default=False)


@contextmanager
def undistributed() -> Iterator[None]:
    """Turns off the wrappers of `distributed` in this context, for graphs without a cluster."""
    token = _undistributed.set(True)
    try:
        yield
    finally:
        _undistributed.reset(token)


class Wrapper(tf.compat.v1.train.Optimizer):
    """A v1 optimizer that delegates to another one; subclasses override some methods.

    Args:
      optimizer: the other one.
      name: the name of this one.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: str) -> None:
        super().__init__(use_locking=False, name=name)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **options: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **options)

    def apply_gradients(self, *args: Any, **options: Any) -> Any:
        return self._optimizer.apply_gradients(*args, **options)

    def get_slot(self, *args: Any, **options: Any) -> Any:
        return self._optimizer.get_slot(*args, **options)

    def get_slot_names(self, *args: Any, **options: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **options)

    def variables(self) -> Any:
        return self._optimizer.variables()


class _KerasSteps(tf.compat.v1.train.Optimizer):
    """Presents a Keras optimizer with the interface of a v1 optimizer."""

    def __init__(self, get_gradients: Callable[..., Any], apply: Callable[..., Any]) -> None:
        super().__init__(use_locking=False, name="Keras")
        self._get_gradients = get_gradients
        self._apply = apply

    def compute_gradients(
        self, loss: tf.Tensor, var_list: Iterable[tf.Variable], **_: Any
    ) -> list[tuple[tf.Tensor, tf.Variable]]:
        variables = list(var_list)
        return list(zip(self._get_gradients(loss, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]], *_: Any, **options: Any
    ) -> tf.Operation:
        # The Keras optimizer's own counter is the global step.
        return self._apply(list(grads_and_vars))


def distributed(optimizer: Any, wrap: Wrap) -> Any:
    """Applies a wrapper of v1 optimizers to a v1 or Keras optimizer.

    Args:
      optimizer: a v1 optimizer, or a Keras optimizer for `model_to_estimator`.
      wrap: takes a v1 optimizer and returns the wrapped one.

    Returns:
      The wrapped optimizer. A Keras optimizer becomes a legacy one, because `model_to_estimator`
      supports only these.

    Raises:
      UsageError: there is no equivalent legacy optimizer.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return wrap(optimizer)
    if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        optimizer = _legacy(optimizer)
    base: Any = type(optimizer)

    class Distributed(base):
        def get_updates(self, loss: tf.Tensor, params: list[tf.Variable]) -> list[tf.Operation]:
            if _undistributed.get():
                updates: list[tf.Operation] = super().get_updates(loss, params)
                return updates
            steps = wrap(_KerasSteps(super().get_gradients, super().apply_gradients))
            gradients = steps.compute_gradients(loss, params)
            return [steps.apply_gradients(gradients, global_step=self.iterations)]

    # The slots are named after the class, and checkpoints must be compatible between strategies.
    Distributed.__name__ = base.__name__
    return Distributed.from_config(optimizer.get_config())


def _legacy(optimizer: Any) -> Any:
    try:
        if not getattr(optimizer, "weight_decay", None):
            return keras_legacy_optimizer.convert(optimizer)
    except (AttributeError, TypeError, ValueError):
        pass  # Keras's own error names neither the optimizer nor a remedy.
    raise UsageError(
        "optimizer",
        received=type(optimizer).__name__,
        accepted="an optimizer that Keras can convert to a legacy one, without weight_decay",
        remedy="Use one of tf.keras.optimizers.legacy, and add weight decay to the model's loss.",
    )
