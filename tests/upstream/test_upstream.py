"""Minimal reproductions of the upstream bugs that tfdist works around.

A test fails when upstream has fixed its bug: then remove the workaround that it names.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.training import monitored_session, session_manager
from tensorflow_estimator.python.estimator import keras_lib

import tfdist  # noqa: F401
from tests.conftest import TinyTraining

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]


def run(script: str) -> str:
    """The output of a new process: a process can set logical devices only once."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_central_storage_does_not_support_a_learning_rate_schedule() -> None:
    """The workaround is `keras3_central_storage.share_learning_rate`."""
    output = run(
        """
        import tensorflow as tf

        cpu, devices = tf.config.list_physical_devices("CPU")[0], ["CPU:0", "CPU:1"]
        logical = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [logical] * 2)
        strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
            schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])
            model.compile(tf.keras.optimizers.SGD(schedule), "mse")
        try:
            model.fit(tf.ones([8, 1]), tf.ones([8, 1]), batch_size=4, verbose=0)
        except ValueError as error:
            print("aggregation" in str(error))
        """
    )
    assert output.strip() == "True"


def test_saving_before_the_first_step_changes_the_meaning_of_accuracy() -> None:
    """The workaround is in `tfdist.storage.export`."""
    output = run(
        """
        import tempfile

        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(3)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
        model.layers[-1].kernel.assign(tf.eye(3))
        model.save(tempfile.mkdtemp(), save_format="tf", include_optimizer=False)
        print(model.evaluate(tf.eye(3), tf.range(3), return_dict=True, verbose=0)["accuracy"])
        """
    )
    assert float(output.strip().splitlines()[-1]) < 1.0


def test_the_iterators_of_a_strategy_ignore_the_datasets_autotune_option() -> None:
    """The workaround is `tf_data_autotune`.

    The time that a destructor waits varies, so this test checks the cause instead.
    """
    create = multi_device_iterator_ops._create_device_dataset
    module = multi_device_iterator_ops.__name__
    assert create.__module__ == module, "the workaround patches this function"
    assert "autotune" not in inspect.getsource(multi_device_iterator_ops)


def test_a_worker_that_starts_before_the_chief_sleeps_for_30_seconds() -> None:
    """The workaround is `session_recovery_wait`."""
    initialize = inspect.signature(session_manager.SessionManager.__init__)
    assert initialize.parameters["recovery_wait_secs"].default == 30


def test_synchronous_replicas_share_their_tokens() -> None:
    """The workaround is `tfdist.estimator.sync_replicas`.

    A worker takes any token, its own or another worker's. The chief's queue runner also runs the
    control dependencies of the worker's step, here the reading of a batch.
    """
    output = run(
        """
        import os
        import tensorflow.compat.v1 as tf

        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            weight = tf.get_variable("weight", initializer=1.0)
            reads = tf.get_variable("reads", initializer=0, trainable=False)
            optimizer = tf.train.SyncReplicasOptimizer(
                tf.train.GradientDescentOptimizer(0.1),
                replicas_to_aggregate=1,
                total_num_replicas=2,
            )
            with tf.control_dependencies([reads.assign_add(1)]):
                train_op = optimizer.minimize(weight * 2.0, step)
            hook = optimizer.make_session_run_hook(True, num_tokens=0)
            hook.begin()
            with tf.Session() as session:
                session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
                session.run(optimizer.chief_init_op)
                runner = optimizer.get_chief_queue_runner()
                runner.create_threads(session, daemon=True, start=True)
                local_steps = [session.run(train_op) for _ in range(6)]
                print(local_steps[:2] == [1, 1], session.run(reads) > 6, flush=True)
                os._exit(0)  # Do not wait for the queue runner's threads.
        """
    )
    assert output.strip() == "True True"


def test_every_task_saves_the_initial_weights_of_a_keras_model() -> None:
    """The workaround is `keras_estimator_first_checkpoint`."""
    source = inspect.getsource(inspect.unwrap(keras_lib._save_first_checkpoint))
    assert "saver.save" in source
    assert "is_chief" not in source


def test_keras_does_not_wait_for_the_logs_of_a_step(tiny: TinyTraining, tmp_path: Path) -> None:
    callbacks = tf.keras.callbacks.CallbackList(tiny.job().callbacks(str(tmp_path)))

    assert callbacks._should_call_train_batch_hooks
    assert callbacks._batch_hooks_support_tf_logs


def test_horovods_wrapper_averages_only_in_minimize() -> None:
    """The workaround is in `tfdist.strategies.horovod.Horovod.wrap_optimizer`."""
    import horovod.tensorflow as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    reduced: list[Any] = []
    reduce = optimizer._allreduce_grads

    def record(gradients: Any, variables: Any) -> Any:
        reduced.append(gradients)
        return reduce(gradients, variables)

    optimizer._allreduce_grads = record
    variable = tf.Variable(1.0)

    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert reduced == []

    optimizer.minimize(lambda: 2.0 * variable, [variable])
    assert len(reduced) == 1


def test_a_session_treats_a_failed_write_as_the_end_of_its_input() -> None:
    """The workaround is `monitored_session_write_errors`."""
    source = inspect.getsource(inspect.unwrap(monitored_session._MonitoredSession.__exit__))
    assert "OutOfRangeError" in source
    assert "Unknown" not in source


def test_the_conversion_to_a_legacy_optimizer_has_no_public_api() -> None:
    """`keras_legacy_optimizer`"""
    from tfdist.upstream.keras_legacy_optimizer import convert

    legacy = convert(tf.keras.optimizers.SGD(0.25))
    assert isinstance(legacy, tf.keras.optimizers.legacy.SGD)
    assert not hasattr(tf.keras.optimizers, "convert_to_legacy_optimizer")
