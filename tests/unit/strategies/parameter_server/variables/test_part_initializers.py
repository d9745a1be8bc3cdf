"""Initial values of the parts of a Keras 3 variable."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest

from tfdist.strategies.parameter_server.variables.part_initializers import part_initializer
from tfdist.strategies.parameter_server.variables.split_layers import offsets_of

pytestmark = pytest.mark.stacks("newest")

SHAPE = (4000, 50)


def in_parts(initializer: Any, parts: int = 4) -> np.ndarray:
    offsets = offsets_of(SHAPE[0], parts)
    values = [
        part_initializer(initializer, SHAPE, begin)((end - begin, SHAPE[1]), "float32")
        for begin, end in pairwise(offsets)
    ]
    return np.concatenate([np.asarray(value) for value in values])


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(seed=1),
        keras.initializers.RandomNormal(stddev=2.0),
        keras.initializers.TruncatedNormal(seed=keras.random.SeedGenerator(3)),
        keras.initializers.GlorotUniform(seed=1),
        keras.initializers.HeNormal(),
        keras.initializers.LecunNormal(seed=1),
        keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
def test_parts_have_the_scale_of_the_whole_and_their_own_numbers(initializer: Any) -> None:
    found, whole = in_parts(initializer), np.asarray(initializer(SHAPE))
    assert found.shape == SHAPE
    np.testing.assert_allclose(found.std(), whole.std(), rtol=0.02)
    np.testing.assert_allclose(found.mean(), whole.mean(), atol=0.02 * whole.std())
    first, second, *_ = np.split(found, 4)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


@pytest.mark.parametrize("initializer", [keras.initializers.Ones(), keras.initializers.Constant(3)])
def test_constants_need_no_whole_value(initializer: Any) -> None:
    assert part_initializer(initializer, SHAPE, 7) is initializer


def test_other_initializers_are_sliced() -> None:
    initializer = keras.initializers.Orthogonal(seed=1)
    np.testing.assert_array_equal(in_parts(initializer), np.asarray(initializer(SHAPE)))


def test_an_initializer_may_ignore_the_part() -> None:
    def whole(shape: Any, dtype: Any = None, **_: Any) -> np.ndarray:
        return np.arange(float(np.prod(shape))).reshape(shape)

    value = part_initializer(whole, (6, 2), first_row=4)((2, 2), "float32")

    np.testing.assert_array_equal(value, [[8, 9], [10, 11]])


def test_an_initializer_can_make_only_the_part() -> None:
    def rows(shape: Any, dtype: Any, partition_shape: Any, partition_offset: Any) -> np.ndarray:
        made.append(tuple(partition_shape))
        first = partition_offset[0] * np.ones(partition_shape)
        return first + np.arange(partition_shape[0])[:, None]

    made: list[tuple[int, ...]] = []
    np.testing.assert_array_equal(in_parts(rows)[:, 0], np.arange(SHAPE[0]))
    assert made == [(1000, 50)] * 4
