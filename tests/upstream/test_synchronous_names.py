"""Private names of TensorFlow's coordinator that `parameter_server` uses.

A `ClusterCoordinator` has no public way to run a function on a given worker and to repeat it when
another process has replaced the worker. A test fails when a name is gone or when there is one.
"""

from __future__ import annotations

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
from tensorflow.python.eager import context, executor

from tests.conftest import keras_is_3

pytestmark = pytest.mark.stacks("2.15", "2.21", "tf_keras")


def test_a_worker_has_a_thread_that_only_takes_closures_of_the_queue() -> None:
    worker = cluster_coordinator.Worker
    assert callable(worker._on_resource_closure_failure)
    assert callable(worker._on_worker_recovery)
    source = inspect.getsource(worker.__init__)
    for attribute in ("worker_index", "device_name", "failure_handler"):
        assert f"self.{attribute} = " in source
    handles = inspect.signature(cluster_coordinator.WorkerPreemptionHandler.wait_on_failure)
    assert set(handles.parameters) == {
        "self",
        "on_failure_fn",
        "on_transient_failure_fn",
        "on_recovery_fn",
        "worker_device_name",
    }
    assert callable(context.executor_scope)
    assert callable(executor.new_executor)
    assert callable(coordinator_context.with_dispatch_context)


def test_the_coordinator_connects_to_all_workers_together() -> None:
    """The workaround is `Reconnection`."""
    handler = cluster_coordinator.WorkerPreemptionHandler
    assert set(inspect.signature(handler.__init__).parameters) == {"self", "server_def", "cluster"}
    source = inspect.getsource(handler._preemption_handler)
    assert "support partial cluster recovery" in source
    assert "update_server_def(self._server_def)" in source
    assert "with self._cluster_update_lock" in source
    assert callable(handler._validate_preemption_failure)
    assert callable(context.context().update_server_def)


def test_the_coordinator_cannot_choose_the_worker_of_a_function() -> None:
    schedule = inspect.signature(tf.distribute.coordinator.ClusterCoordinator.schedule)
    assert set(schedule.parameters) == {"self", "fn", "args", "kwargs"}
    # A closure for one worker is not repeated after a failure.
    put_back = inspect.getsource(cluster_coordinator._CoordinatedClosureQueue.put_back)
    assert "assert closure.tag is None" in put_back


def test_run_needs_a_scheduled_function() -> None:
    extended = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    assert "_being_scheduled" in inspect.getsource(extended)


def test_keras_2_counts_steps_in_a_variable_of_the_model() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    assert keras_is_3() or isinstance(model._train_counter, tf.Variable)
