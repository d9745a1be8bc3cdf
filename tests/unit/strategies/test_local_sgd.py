"""Local SGD: what the outer optimizer computes, when the tasks meet, and what the flags mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.strategies import table
from tfdist.strategies.local_sgd import LocalSGD, OuterSteps, Synchronization, outer_steps


class WithAnother:
    """The collectives of this task and one more, whose weights do not change by themselves."""

    rank = 0
    size = 2

    def __init__(self) -> None:
        self.meetings = 0

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self.meetings += 1
        return list(values)

    def gather(self, number: int) -> list[int]:
        return [number, number]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        pass

    def broadcast_object(self, text: str) -> str:
        return text


def model_of(weight: tf.Variable) -> tf.keras.Model:
    model = tf.keras.Model()
    model.weight = weight
    model.built = True
    return model


def begun(options: OuterSteps) -> tuple[LocalSGD, tf.Variable]:
    weight = tf.Variable([1.0, -2.0])
    local = LocalSGD(WithAnother(), options)
    local.state(model_of(weight))
    local.begin()
    return local, weight


def test_the_weights_are_averaged() -> None:
    local, weight = begun(OuterSteps(period=3))
    weight.assign([2.0, 2.0])
    local.step()
    local.synchronize()
    # The other one has stayed at 1 and -2.
    np.testing.assert_allclose(weight, [1.5, 0.0])


def test_the_outer_optimizer_is_nesterovs() -> None:
    """Against Keras's SGD, which is given the average changes for gradients."""
    local, weight = begun(OuterSteps(period=3, learning_rate=0.7, momentum=0.9))
    reference = tf.Variable(weight)
    optimizer = tf.keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    for change in ([0.5, 0.1], [0.2, -0.4], [0.0, 0.3], [-0.1, 0.2]):
        weight.assign_add(change)
        local.step()
        local.synchronize()
        optimizer.apply_gradients([(-0.5 * tf.constant(change), reference)])
        np.testing.assert_allclose(weight, reference, rtol=1e-6)


def test_weights_that_are_equal_are_left_alone() -> None:
    local, weight = begun(OuterSteps(period=3, momentum=0.9))
    weight.assign_add([0.5, 0.1])
    local.step()
    local.synchronize()
    before = weight.numpy()
    local.synchronize()
    np.testing.assert_array_equal(weight, before)


@pytest.mark.parametrize(
    ("period", "steps_per_execution", "meetings"),
    # Of an epoch of 5 steps; its end is one of them.
    [(1, 1, 5), (2, 1, 3), (5, 1, 1), (9, 1, 1), (2, 2, 3), (3, 2, 2), (2, 5, 1), (3, 4, 2)],
)
def test_when_the_tasks_meet(
    tiny: TinyTraining, period: int, steps_per_execution: int, meetings: int
) -> None:
    model = tiny.model()
    model.compile(tf.keras.optimizers.SGD(0.1), model.loss, steps_per_execution=steps_per_execution)
    collectives = WithAnother()
    local = LocalSGD(collectives, OuterSteps(period))
    local.state(model)
    local.begin()
    data = tiny.train_input(tf.distribute.InputContext())
    model.fit(data, epochs=1, callbacks=[Synchronization(local)], verbose=0)
    assert collectives.meetings == meetings
    model.fit(data, epochs=2, callbacks=[Synchronization(local)], verbose=0)
    assert collectives.meetings == 3 * meetings


def test_what_the_flags_mean() -> None:
    assert outer_steps(JobFlags()) is None
    assert outer_steps(JobFlags(sync_period=50)) == OuterSteps(50, 1.0, 0.0)
    with_momentum = JobFlags(sync_period=50, outer_momentum=0.9)
    assert outer_steps(with_momentum) == OuterSteps(50, 0.7, 0.9)
    with_rate = JobFlags(sync_period=50, outer_learning_rate=0.5)
    assert outer_steps(with_rate) == OuterSteps(50, 0.5, 0.0)


@pytest.mark.parametrize("name", ["horovod", "multi_worker_mirrored"])
@pytest.mark.parametrize(
    "options", [JobFlags(outer_momentum=0.9), JobFlags(outer_learning_rate=0.5)]
)
def test_an_outer_optimizer_wants_a_period(name: str, options: JobFlags) -> None:
    with pytest.raises(UsageError, match="accepted: only together with --sync_period"):
        table.check_flags(table.row(name), options)


@pytest.mark.parametrize("name", ["one_device", "mirrored", "parameter_server"])
def test_other_strategies_refuse_a_period(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"--sync_period: .* accepted: not supported with --strategy={name}"
    ):
        table.check_flags(table.row(name), JobFlags(sync_period=2))


def test_estimators_refuse_a_period() -> None:
    with pytest.raises(UsageError, match=r"--sync_period: .* not supported for Estimators"):
        table.strategy_path(table.row("horovod"), JobFlags(sync_period=2), for_estimators=True)
