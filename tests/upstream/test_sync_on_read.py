"""All sync-on-read variables are reduced together when a checkpoint is saved."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

# Each script runs in a new process, because a process can set logical devices only once.
HEADER = """
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import CrossDeviceOps

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
reductions = []
reduce = CrossDeviceOps.reduce
CrossDeviceOps.reduce = lambda self, *args, **kwargs: (
    reductions.append(args), reduce(self, *args, **kwargs)
)[1]
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input([3]),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Dense(2),
        tf.keras.layers.BatchNormalization(),
    ])
for number, variable in enumerate(model.non_trainable_variables):
    for replica, local in enumerate(variable.values):
        local.assign(number + replica * tf.range(1.0, local.shape[0] + 1))
reductions.clear()
"""


def run(script: str) -> list[str]:
    program = HEADER + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr
    return done.stdout.split()


def test_a_checkpoint_needs_one_all_reduce_and_contains_the_averages() -> None:
    output = run(
        """
        import tempfile
        from tfdist.strategies.replicas import sync_on_read
        from tfdist.strategies.replicas.sync_on_read import on_read_variables, read_at_once

        sync_on_read.apply()

        path = tempfile.mkdtemp() + "/ckpt"
        with read_at_once(strategy, on_read_variables(model)):
            tf.train.Checkpoint(model=model).write(path)
            tf.function(lambda: model(tf.ones([1, 3])))()
            print(len(reductions))
            model.save(path + "-model", save_format="tf")
            print(len(reductions))
        for number, variable in enumerate(model.non_trainable_variables):
            variable.values[0].assign_add(tf.ones(variable.shape))
            changed = number + 0.5 * np.arange(1, variable.shape[0] + 1) + 0.5
            np.testing.assert_allclose(variable.numpy(), changed, rtol=1e-6)
        print(len(reductions))
        for saved in (path, path + "-model/variables/variables"):
            reader = tf.train.load_checkpoint(saved)
            names = [name for name in reader.get_variable_to_shape_map() if "moving_" in name]
            values = sorted(reader.get_tensor(name).tolist() for name in names)
            assert values == sorted(
                (number + 0.5 * np.arange(1, variable.shape[0] + 1)).tolist()
                for number, variable in enumerate(model.non_trainable_variables)
            ), values
        """
    )
    assert output[:2] == ["1", "1"]
    # After the block, each variable is averaged separately again.
    assert output[2] == "5"


def test_each_dtype_needs_one_all_reduce_and_the_function_is_traced_once() -> None:
    output = run(
        """
        from tfdist.strategies.replicas import sync_on_read
        from tfdist.strategies.replicas.sync_on_read import read_at_once

        sync_on_read.apply()

        with strategy.scope():
            halves = tf.Variable(
                tf.zeros([2], tf.float16),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )
        variables = [*model.variables, halves]
        for number in range(6):
            halves.values[0].assign([number, 2.0])
            with read_at_once(strategy, variables):
                assert halves.numpy().tolist() == [number / 2, 1.0]
                assert model.non_trainable_variables[1].numpy().tolist() == [1.5, 2.0, 2.5]
        # They are in the function.
        assert len(reductions) == 2
        """
    )
    assert output == []


def test_sums_of_metrics_and_layers_are_reduced_together_and_restored() -> None:
    output = run(
        """
        import tempfile
        from tfdist.strategies.replicas import sync_on_read
        from tfdist.strategies.replicas.sync_on_read import on_read_variables, read_at_once

        sync_on_read.apply()

        def counter(aggregation):
            on_read = tf.VariableSynchronization.ON_READ
            return tf.Variable(
                [0, 0], trainable=False, synchronization=on_read, aggregation=aggregation
            )

        with strategy.scope():
            model.mean = tf.keras.metrics.Mean()
            model.layers[1].counts = counter(tf.VariableAggregation.SUM)
            # Not in `model.variables`, but in the checkpoint.
            model.counts = {"all": [counter(tf.VariableAggregation.SUM)]}
            model.first = counter(tf.VariableAggregation.ONLY_FIRST_REPLICA)
        counters = [model.layers[1].counts, model.counts["all"][0], model.first]
        variables = [*model.mean.variables, *counters]
        for number, variable in enumerate(variables):
            for replica, local in enumerate(variable.values):
                local.assign(tf.fill(local.shape, tf.cast(10 * number + 2 * replica, local.dtype)))
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.save_counter
        reductions.clear()
        with read_at_once(strategy, on_read_variables(model)):
            path = checkpoint.write(tempfile.mkdtemp() + "/ckpt")
        print(len(reductions))
        for variable in variables:
            for local in variable.values:
                local.assign(tf.zeros_like(local))
        checkpoint.read(path).assert_consumed()
        print(*(tf.reduce_sum(variable.read_value()).numpy() for variable in variables))
        """
    )
    # Three reductions: means of floats, sums of floats, sums of integers.
    assert output == ["3", "2.0", "22.0", "84", "124", "80"]


def test_mixed_precision_variables_and_unknown_shapes_are_reduced_together() -> None:
    output = run(
        """
        import tempfile
        from tfdist.strategies.replicas import sync_on_read
        from tfdist.strategies.replicas.sync_on_read import on_read_variables, read_at_once

        sync_on_read.apply()

        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        with strategy.scope():
            inputs = tf.keras.Input([3])
            model = tf.keras.Model(inputs, tf.keras.layers.BatchNormalization()(inputs))
            model.tracker = tf.keras.metrics.Mean()
            model.row = tf.Variable(
                [1.0, 2.0],
                shape=[None],
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        model.tracker.total.values[1].assign(6.0)
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.save_counter
        reductions.clear()
        with read_at_once(strategy, on_read_variables(model)):
            path = checkpoint.write(tempfile.mkdtemp() + "/ckpt")
        # Two reductions: means and sums.
        print(len(reductions))
        reader = tf.train.load_checkpoint(path)
        print(reader.get_tensor("model/tracker/total/.ATTRIBUTES/VARIABLE_VALUE"))
        print(*reader.get_tensor("model/row/.ATTRIBUTES/VARIABLE_VALUE"))
        """
    )
    assert output == ["2", "6.0", "2.0", "4.0"]


def test_building_a_model_needs_no_reductions() -> None:
    output = run(
        """
        def make():
            reductions.clear()
            with strategy.scope():
                inputs = tf.keras.Input([3])
                model = tf.keras.Model(inputs, tf.keras.layers.BatchNormalization()(inputs))
            print(len(reductions))
            return model

        # TensorFlow needs reductions here; if it did not, the workaround would be unnecessary.
        by_tensorflow = make()
        from tfdist.strategies.replicas import sync_on_read

        sync_on_read.apply()
        model = make()
        for built in (model, by_tensorflow):
            built.layers[1].moving_mean.values[1].assign([2.0, 4.0, 6.0])
            np.testing.assert_array_equal(built.layers[1].moving_mean, [1.0, 2.0, 3.0])
            reductions.clear()
            tf.function(lambda: built(tf.ones([1, 3])))()
            print(len(reductions))
        """
    )
    assert output == ["2", "0", "2", "2"]


def test_tensorflow_averages_each_variable_several_times() -> None:
    """The workaround is `tfdist.strategies.replicas.sync_on_read`."""
    output = run(
        """
        import tempfile

        tf.train.Checkpoint(model=model).write(tempfile.mkdtemp() + "/ckpt")
        print(len(reductions))
        """
    )
    assert int(output[0]) > 4
