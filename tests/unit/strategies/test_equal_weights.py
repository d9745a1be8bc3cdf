"""The weights of all replicas are compared when an epoch ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies.base import Topology
from tfdist.strategies.equal_weights import EqualWeights

pytestmark = pytest.mark.stacks("2.15", "newest")


class TwoReplicas:
    """A strategy whose task has two replicas, of which the second differs by `difference`."""

    def __init__(self, difference: float) -> None:
        self.difference = difference

    def experimental_local_results(self, variable: tf.Variable) -> tuple[Any, Any]:
        return variable, tf.constant(variable.numpy() + self.difference)


def end_epochs(
    gather: Callable[[int], list[int]],
    strategy: Any = None,
    broadcast: Callable[[list[tf.Variable]], None] | None = None,
) -> None:
    task: Any = SimpleNamespace(
        tf_strategy=strategy or tf.distribute.get_strategy(),
        gather=gather,
        topology=Topology("worker:0", ("worker:0", "worker:1")),
    )
    callback = EqualWeights(task, broadcast)
    model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    callback.on_epoch_end(0)
    callback.on_epoch_end(1)


def test_nothing_is_said_of_equal_weights(capsys: pytest.CaptureFixture[str]) -> None:
    end_epochs(lambda number: [number, number])
    end_epochs(lambda number: [number], TwoReplicas(0.0))
    assert capsys.readouterr().err == ""


def test_the_chief_says_once_that_tasks_differ(capsys: pytest.CaptureFixture[str]) -> None:
    end_epochs(lambda number: [number, number + 1])
    text = capsys.readouterr().err
    assert text.count("the weights of the replicas differ") == 1
    assert text.endswith("the checkpoints have those of the chief\n")


def test_replicas_of_one_task_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    end_epochs(lambda number: [number], TwoReplicas(1.0))
    assert capsys.readouterr().err.count("the weights of the replicas differ") == 1


def test_ranks_get_the_weights_of_the_chief_after_each_epoch() -> None:
    given: list[int] = []
    end_epochs(
        lambda number: [number, number + 1], broadcast=lambda weights: given.append(len(weights))
    )
    assert given == [2, 2]
