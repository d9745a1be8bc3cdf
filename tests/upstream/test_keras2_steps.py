"""What `strategies/parameter_server/` assumes about the steps of Keras 2."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any

import pytest
import tensorflow as tf

import tfdist  # noqa: F401
from tfdist.compat import replaced
from tfdist.strategies.parameter_server.steps import keras2
from tfdist.strategies.replicas import keras2_executions, sync_on_read

pytestmark = pytest.mark.stacks("2.15", "tf_keras")


class Coordinator:
    def schedule(self, fn: Any, args: Any) -> None:
        self.fn, self.args = fn, args


def test_the_closure_of_the_train_function_has_the_function_of_one_step() -> None:
    """`keras2`"""
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=3)
    model._cluster_coordinator = coordinator = Coordinator()
    batches = tf.data.Dataset.from_tensor_slices((tf.ones([5, 1]), tf.ones([5, 1]))).batch(1)
    iterator = iter(batches)

    model.make_train_function()(iterator)
    logs = keras2.single_step(coordinator.fn)(iterator)

    assert int(coordinator.args[1]) == 3
    assert set(logs) == {"loss"}
    assert int(model.optimizer.iterations) == 1
    assert len(list(iterator)) == 4


def test_keras_2_ignores_class_weight_with_parameter_servers() -> None:
    """`keras2_class_weight`"""
    package = tf.keras.Model.__module__.rpartition(".")[0]
    handler = sys.modules[f"{package}.data_adapter"]._ClusterCoordinatorDataHandler
    source = inspect.getsource(inspect.unwrap(handler._configure_dataset_and_inferred_steps))
    assert source.count("class_weight") == 1


def test_keras_2_makes_one_train_function_for_one_step() -> None:
    """`keras2_executions`"""
    source = inspect.getsource(inspect.unwrap(tf.keras.Model.make_train_function))
    assert "self._steps_per_execution.numpy().item() == 1" in source
    several = source[source.index("with multiple steps") :]
    assert "outputs = step_function(self, iterator)" in several


@pytest.mark.parametrize("is_own", [True, False])
def test_a_train_step_of_the_user_may_read_the_results_of_all_replicas(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(tf.keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    recorded: list[bool] = []

    def recording(has_own: bool) -> Any:
        recorded.append(has_own)
        return contextlib.nullcontext()

    monkeypatch.setattr(sync_on_read, "own_values", recording)
    layers = [tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)]
    model = Own(layers) if is_own else tf.keras.Sequential(layers)
    model.compile("sgd", "mse")
    with replaced.fitting():
        keras2_executions.Executions(model).set_steps(2)
        model.fit(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=1, verbose=0)

    assert int(model.optimizer.iterations) == 4
    assert recorded and set(recorded) == {not is_own}


def test_keras_2_creates_steps_per_execution_on_a_ps() -> None:
    """`keras2_steps_per_execution`: fails when Keras no longer reads it before each step."""
    assert "tf.Variable(" in inspect.getsource(tf.keras.Model._create_counter_variable)
    configure = inspect.unwrap(tf.keras.Model._configure_steps_per_execution)
    assert "self._create_counter_variable(" in inspect.getsource(configure)
    package = tf.keras.Model.__module__.rpartition(".")[0]
    steps = sys.modules[f"{package}.data_adapter"].DataHandler.steps
    assert "self._steps_per_execution.numpy()" in inspect.getsource(steps)
