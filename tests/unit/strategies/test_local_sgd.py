"""Local SGD: the outer optimizer, when the tasks average their weights, and the flags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.config.strategies.rows import HorovodOptions
from tfdist.strategies.collectives import Collectives
from tfdist.strategies.local_sgd import LocalSGD, Synchronization

pytestmark = pytest.mark.stacks("2.15")


class TwoTasks(Collectives):
    """Collectives of this task and a second one, whose weights never change."""

    rank = 0
    size = 2

    def __init__(self) -> None:
        self.sums = 0

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self.sums += 1
        return list(values)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        pass


def model_of(weight: tf.Variable) -> tf.keras.Model:
    model = tf.keras.Model()
    model.weight = weight
    model.built = True
    return model


def started(momentum: float | None = None) -> tuple[LocalSGD, tf.Variable]:
    weight = tf.Variable([1.0, -2.0])
    local = LocalSGD(TwoTasks(), 3, HorovodOptions(outer_momentum=momentum))
    local.state(model_of(weight))
    local.begin()
    return local, weight


def test_the_weights_are_averaged() -> None:
    local, weight = started()
    weight.assign([2.0, 2.0])
    local.step()
    local.synchronize()
    # The other task's weights are still 1 and -2.
    np.testing.assert_allclose(weight, [1.5, 0.0])


def test_the_outer_optimizer_uses_nesterov_momentum() -> None:
    """Compares it with Keras's SGD, which gets the average changes as gradients."""
    local, weight = started(momentum=0.9)
    reference = tf.Variable(weight)
    optimizer = tf.keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    for change in ([0.5, 0.1], [0.2, -0.4], [0.0, 0.3], [-0.1, 0.2]):
        weight.assign_add(change)
        local.step()
        local.synchronize()
        optimizer.apply_gradients([(-0.5 * tf.constant(change), reference)])
        np.testing.assert_allclose(weight, reference, rtol=1e-6)


def test_synchronizing_equal_weights_changes_nothing() -> None:
    local, weight = started(momentum=0.9)
    weight.assign_add([0.5, 0.1])
    local.step()
    local.synchronize()
    before = weight.numpy()
    local.synchronize()
    np.testing.assert_array_equal(weight, before)


@pytest.mark.parametrize(
    ("period", "steps_per_execution", "sums"),
    # The epoch has 5 steps; the tasks also average at its end.
    [(1, 1, 5), (2, 1, 3), (5, 1, 1), (9, 1, 1), (2, 2, 3), (3, 2, 2), (2, 5, 1), (3, 4, 2)],
)
def test_the_tasks_average_after_each_period_and_epoch(
    tiny: TinyTraining, period: int, steps_per_execution: int, sums: int
) -> None:
    model = tiny.model()
    model.compile(tf.keras.optimizers.SGD(0.1), model.loss, steps_per_execution=steps_per_execution)
    collectives = TwoTasks()
    local = LocalSGD(collectives, period, HorovodOptions())
    local.state(model)
    local.begin()
    data = tiny.train_input(tf.distribute.InputContext())
    model.fit(data, epochs=1, callbacks=[Synchronization(local)], verbose=0)
    assert collectives.sums == sums
    model.fit(data, epochs=2, callbacks=[Synchronization(local)], verbose=0)
    assert collectives.sums == 3 * sums


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (HorovodOptions(), (1.0, 0.0)),
        (HorovodOptions(outer_momentum=0.9), (0.7, 0.9)),
        (HorovodOptions(outer_learning_rate=0.5), (0.5, 0.0)),
    ],
)
def test_the_flags_select_the_outer_optimizer(
    options: HorovodOptions, expected: tuple[float, float]
) -> None:
    local = LocalSGD(TwoTasks(), 50, options)
    assert (local.learning_rate, local.momentum) == expected
