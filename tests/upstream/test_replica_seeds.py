"""Replicas draw different random numbers, and the same ones in each run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tests.support.new_process import run
from tfdist.upstream import replica_seeds

pytestmark = [pytest.mark.stacks("2.15", "2.21", "tf_keras"), pytest.mark.timeout(120)]

_TWO_REPLICAS = """
import tensorflow as tf
from tfdist.upstream import replica_seeds

cpu, logical = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [logical] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def masks():
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        dropout = tf.keras.layers.Dropout(0.5)
        dropout.build([64])
    step = tf.function(lambda: strategy.run(lambda: dropout(tf.ones([64]), training=True)))
    return [
        tuple(each.numpy())
        for values in [step(), step()]
        for each in strategy.experimental_local_results(values)
    ]
"""


@pytest.fixture
def _keras_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    if keras_is_3():
        generator, name = tf.keras.random.SeedGenerator, "next"
    else:
        package = tf.keras.layers.Layer.__module__.partition(".")[0]
        backend: Any = importlib.import_module(f"{package}.src.backend")
        generator, name = backend.RandomGenerator, "make_legacy_seed"
    # An earlier test in this process may have changed it.
    monkeypatch.setattr(generator, name, inspect.unwrap(getattr(generator, name)))


def masks(number: Callable[[], int] | None) -> tuple[np.ndarray, list[Any]]:
    """The masks of two steps of two layers, and the state of their seeds after them.

    Args:
      number: returns the number of the replica; None for Keras as it is.
    """
    if number is not None:
        replica_seeds.apply(number)
    tf.keras.utils.set_random_seed(1)
    dropouts = [tf.keras.layers.Dropout(0.5), tf.keras.layers.Dropout(0.5, seed=2)]
    ones = tf.ones([64])
    step = tf.function(lambda: [each(ones, training=True) for each in dropouts])
    drawn = np.array([step(), step()])
    return drawn, [
        np.asarray(variable) for each in dropouts for variable in each.variables if keras_is_3()
    ]


@pytest.mark.skipif(not keras_is_3(), reason="Keras 2 draws otherwise in the replicas of a process")
def test_keras_draws_the_same_in_all_replicas() -> None:
    lines = run(_TWO_REPLICAS, "print(*[masks()[0] == masks()[1], masks()[0] == masks()[2]])")
    assert lines == ["True", "False"]


def test_replicas_of_a_process_draw_different_numbers_and_the_same_in_each_run() -> None:
    lines = run(
        _TWO_REPLICAS,
        """
        replica_seeds.apply(replica_seeds.of_replica)
        print(len(set(masks())), masks() == masks())
        """,
    )
    assert lines == ["4", "True"]


@pytest.mark.usefixtures("_keras_as_it_was")
def test_ranks_draw_different_numbers_from_an_equal_state() -> None:
    alone, _ = masks(None)
    first, state = masks(lambda: 0)
    second, state_of_second = masks(lambda: 1)
    again, _ = masks(lambda: 1)

    np.testing.assert_array_equal(first, alone)
    np.testing.assert_array_equal(again, second)
    for own, other in zip(first.reshape([-1, 64]), second.reshape([-1, 64]), strict=True):
        assert (own != other).any()
    for own, other in zip(state, state_of_second, strict=True):
        np.testing.assert_array_equal(own, other)
