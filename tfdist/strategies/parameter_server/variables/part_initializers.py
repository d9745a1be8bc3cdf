"""Initial values of one part of a Keras 3 variable, made without the whole value where possible.

    initializer = part_initializer(GlorotUniform(seed=1), whole=(1 << 20, 16), first_row=0)
    initializer((1 << 14, 16), "float32")    # shape [1 << 14, 16]

Keras 3's initializers know only the shape that they fill. A part must have the scale of the whole
variable, and its own random numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

Initializer = Any  # A Keras initializer or any other callable of a shape and a dtype.

# These values do not depend on the shape.
_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_RANDOM = (
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)
# A prime, so that the seeds of the parts of different variables are rarely the same.
_SEED_STEP = 1_000_003


def part_initializer(initializer: Initializer, whole: Sequence[int], first_row: int) -> Initializer:
    """An initializer for the rows of a variable from `first_row` on.

    Args:
      initializer: the initializer of the whole variable. A user's initializer creates only the part
        if it takes the arguments `partition_shape` and `partition_offset`, as with Keras 2. Any
        other one, such as `Orthogonal`, creates the whole value, which is then sliced.
      whole: the shape of the whole variable, of rank 2.
      first_row: where the part begins.

    Returns:
      A function of the part's shape and dtype, which returns a tensor.
    """
    kind = type(initializer)
    if kind in _CONSTANT:
        return initializer
    if kind in _RANDOM:
        config = {**initializer.get_config(), "seed": _seed(initializer, first_row)}
        return kind.from_config(config)
    return partial(
        _scaled if _is_scaling(initializer) else _sliced, initializer, tuple(whole), first_row
    )


def _scaled(
    initializer: Any, whole: Sequence[int], first_row: int, shape: Sequence[int], dtype: Any = None
) -> Any:
    """A part of the value of a `VarianceScaling` initializer, such as `GlorotUniform`."""
    mode, seed = initializer.mode, _seed(initializer, first_row)
    scale = initializer.scale * _fan(mode, shape) / _fan(mode, whole)
    part = keras.initializers.VarianceScaling(scale, mode, initializer.distribution, seed)
    return part(shape, dtype)


def _fan(mode: str, shape: Sequence[int]) -> float:
    """The number by which Keras divides the scale."""
    fan_in, fan_out = shape
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    return float(max(1.0, fans[mode]))


def _sliced(
    initializer: Any, whole: Sequence[int], first_row: int, shape: Sequence[int], dtype: Any = None
) -> Any:
    """A part of the value of any initializer."""
    options: dict[str, Any] = {}
    if _takes_partitions(initializer):
        options["partition_shape"] = tuple(shape)
        options["partition_offset"] = (first_row, *(0 for _ in shape[1:]))
    value = initializer(whole, dtype=dtype, **options)
    # With `**kwargs`, as in Keras's guides, an initializer may ignore these arguments.
    if tuple(value.shape) == tuple(shape):
        return value
    return value[first_row : first_row + shape[0]]


def _is_scaling(initializer: Any) -> bool:
    return (
        isinstance(initializer, keras.initializers.VarianceScaling)
        and type(initializer).__call__ is keras.initializers.VarianceScaling.__call__
        # Other axes make other fans.
        and getattr(initializer, "input_axes", None) is None
        and getattr(initializer, "output_axes", None) is None
    )


def _takes_partitions(initializer: Initializer) -> bool:
    parameters = inspect.signature(initializer).parameters
    return "partition_shape" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _seed(initializer: Any, first_row: int) -> Any:
    """The seed of a part; the first part has the seed of the whole variable."""
    seed = initializer.seed
    # A `SeedGenerator` gives other random numbers at each call.
    return (seed + first_row * _SEED_STEP) % 2**31 if isinstance(seed, int) else seed
