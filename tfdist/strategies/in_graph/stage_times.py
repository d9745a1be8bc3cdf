"""Measures the seconds of each layer of a model, to cut it into stages of equal time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from tfdist.compat import building
from tfdist.compat.replaced import replaced
from tfdist.strategies.in_graph.variables import reading, tensorflow_variable
from tfdist.strategies.sizes import bytes_of

_EXAMPLES = 32
_REPEATS = 3


def seconds_of(model: Any, inputs: Any, layers: Iterable[Any]) -> Callable[[Any], float]:
    """Measures the call and the gradient of each layer on a batch of zeros.

    Args:
      model: a built `tf.keras.Model`.
      inputs: the `tf.TensorSpec` of its inputs; a batch of unknown size has 32 examples.
      layers: its layers.

    Returns:
      A function from a layer to its seconds; 0 for a layer that the model does not call.
    """
    arguments: dict[int, tuple[Any, Any]] = {}

    def recording(layer: Any, call: Any) -> Any:
        def record(*args: Any, **kwargs: Any) -> Any:
            arguments.setdefault(id(layer), (args, kwargs))
            return call(*args, **kwargs)

        return record

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(replaced(layer, "call", recording(layer, layer.call)))
        model(building.zeros(inputs, size=_EXAMPLES))
    return lambda layer: _seconds(layer, *arguments[id(layer)]) if id(layer) in arguments else 0.0


def _seconds(layer: Any, args: Any, kwargs: Any) -> float:
    """The seconds of a layer on the device of its largest variable; about 0 without floats."""
    variables = [tensorflow_variable(variable) for variable in layer.trainable_variables]
    device = max(variables, key=bytes_of).device if variables else None
    with tf.device(device), ExitStack() as stack:
        args, kwargs = tf.nest.map_structure(_copy, (args, kwargs))
        floats = [value for value in tf.nest.flatten((args, kwargs)) if _is_float(value)]
        # Otherwise the time would include reading variables on other devices.
        values = [tf.identity(variable.read_value()) for variable in variables]
        stack.enter_context(reading(zip(variables, values, strict=True)))
        floats += values

        @tf.function
        def run() -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(floats)
                outputs = [v for v in tf.nest.flatten(layer(*args, **kwargs)) if _is_float(v)]
            gradients = tape.gradient(outputs, floats)
            results = tf.nest.flatten([outputs, gradients], expand_composites=True)
            # TensorFlow computes what a value depends on, and the caller waits for the value.
            firsts = [tf.reshape(value, [-1])[0] for value in results if _is_float(value)]
            return tf.add_n([tf.cast(value, tf.float32) for value in firsts] or [tf.constant(0.0)])

        # The first run also traces the function and compiles kernels.
        return min(_timed(run) for _ in range(1 + _REPEATS))


def _timed(run: Callable[[], tf.Tensor]) -> float:
    begin = time.perf_counter()
    run().numpy()
    return time.perf_counter() - begin


def _copy(value: Any) -> Any:
    return tf.identity(value) if isinstance(value, tf.Tensor) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating
