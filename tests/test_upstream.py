"""The upstream bugs that tfdist works around, in the smallest scripts.

A test that fails here says that upstream has mended one: take the cure named beside it out.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap

import pytest
from tensorflow.python.data.ops import multi_device_iterator_ops

import tfdist.strategies.datasets  # noqa: F401

pytestmark = pytest.mark.timeout(120)


def run(script: str) -> str:
    """The standard output of a program of its own: logical devices are set once a process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_central_storage_does_not_take_a_learning_rate_schedule() -> None:
    """The cure is `CentralStorage.optimizer`."""
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


def test_saving_before_the_first_step_makes_accuracy_count_something_else() -> None:
    """The cure is in `tfdist.checkpoints.export`."""
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


def test_the_iterators_of_a_strategy_are_autotuned_whatever_the_dataset_says() -> None:
    """The cure is `tfdist.strategies.datasets._without_autotune`, which says what comes of it.

    How long a destructor waits is a matter of chance, so that the cause is looked at in its place.
    """
    create = multi_device_iterator_ops._create_device_dataset
    assert create.__module__ == multi_device_iterator_ops.__name__, "the cure is of this function"
    assert "autotune" not in inspect.getsource(multi_device_iterator_ops)
