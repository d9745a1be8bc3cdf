"""Keeps in checkpoints what a training changes in the user's callbacks, such as `wait` and `best`.

    states = CallbackStates(callbacks)     # after their `on_train_begin`
    states.restore(position.callbacks)
    Position(…, callbacks=states.changed())

The state of a callback is what its public attributes hold, where that is plain data: numbers,
strings and lists of them, and the best weights of `EarlyStopping`. Attributes with the name of an
argument are the script's.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

_MISSING = object()
# The attribute of EarlyStopping, a list of arrays. Other arrays may be large, and are the script's.
_WEIGHTS = "best_weights"


class CallbackStates:
    """The states of the callbacks of a `fit`, except those of tfdist and of Keras itself.

    Args:
      callbacks: all callbacks, in their order; each is known by its class, by the metric that it
        monitors, and by its number among those.
    """

    def __init__(self, callbacks: Sequence[tf.keras.callbacks.Callback]) -> None:
        own = tf.keras.callbacks.History, tf.keras.callbacks.ProgbarLogger
        self._callbacks: dict[str, Any] = {}
        for each in callbacks:
            if not isinstance(each, own) and not type(each).__module__.startswith("tfdist."):
                kind = f"{type(each).__name__} of {getattr(each, 'monitor', None)}"
                number = sum(name.startswith(f"{kind}, ") for name in self._callbacks)
                self._callbacks[f"{kind}, {number + 1}"] = each
        self._begun = {name: _state(each) for name, each in self._callbacks.items()}

    def changed(self) -> dict[str, dict[str, Any]]:
        """What the callbacks have changed since `on_train_begin`, for JSON."""
        changed = {}
        for name, callback in self._callbacks.items():
            begun = self._begun[name]
            changed[name] = {
                attribute: value
                for attribute, value in _state(callback).items()
                if value != begun.get(attribute, _MISSING)
            }
        return changed

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives the callbacks what an earlier `changed` has returned."""
        for name in states.keys() & self._callbacks.keys():
            for attribute, value in states[name].items():
                setattr(self._callbacks[name], attribute, _decoded(value))


def _state(callback: Any) -> dict[str, Any]:
    constructors = [vars(kind).get("__init__", object) for kind in type(callback).__mro__]
    arguments = {name for each in constructors for name in inspect.signature(each).parameters}
    state = {}
    for name, value in vars(callback).items():
        if not name.startswith("_") and name not in arguments:
            with suppress(TypeError):
                is_weights = name == _WEIGHTS and value is not None
                state[name] = list(map(_array, value)) if is_weights else _encoded(value)
    return state


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _encoded(value.item())
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    raise TypeError(f"received {type(value).__name__}; accepted: plain data")


def _array(value: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(value.tobytes()).decode()
    return {"dtype": value.dtype.name, "shape": value.shape, "data": data}


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        data = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    return [_decoded(each) for each in value] if isinstance(value, list) else value
