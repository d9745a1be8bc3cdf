"""Variables are spread over devices, and moved to the devices of their stages."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from tests.support.processes import ROOT
from tfdist.strategies.in_graph.variables import bytes_of, move

pytestmark = pytest.mark.stacks("2.15", "newest")

_TWO_DEVICES = """
import tfdist
import tempfile

import numpy as np
import tensorflow as tf

from tfdist.strategies.in_graph.variables import move, spread, tensorflow_variable

cpu = tf.config.list_physical_devices("CPU")[0]
logical = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, logical)
devices = ["/device:CPU:0", "/device:CPU:1"]

def place(variable):
    return int(tensorflow_variable(variable).device[-1])
"""


def run(script: str) -> None:
    """Runs assertions in a new process: a process can set logical devices only once."""
    program = _TWO_DEVICES + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_variable_goes_to_the_device_with_the_fewest_bytes() -> None:
    run(
        """
        with spread(devices):
            first = tf.Variable(tf.zeros([10]))
            second = tf.Variable(tf.zeros([4]))
            third = tf.Variable(lambda: tf.zeros([4]), shape=[4])
            fourth = tf.Variable(np.zeros([4], np.float64))
            scalar = tf.Variable(0.0)
            one = tf.Variable([1.0])
        assert [place(v) for v in (first, second, third, fourth)] == [0, 1, 1, 1]
        # Scalars are not counted, and stay where they would be.
        assert [place(v) for v in (scalar, one)] == [0, 0]
        after = tf.Variable(tf.zeros([100]))
        assert place(after) == 0

        with spread(devices):
            model = tf.keras.Sequential(
                [tf.keras.Input([8])] + [tf.keras.layers.Dense(8) for _ in range(4)]
            )
        assert {place(v) for v in model.variables} == {0, 1}
        loads = [sum(np.size(v) for v in model.variables if place(v) == d) for d in (0, 1)]
        assert sum(loads) == 4 * 72
        assert abs(loads[0] - loads[1]) < 72, loads
        """
    )


def test_a_moved_variable_keeps_its_identity_value_and_checkpoints() -> None:
    run(
        """
        variable = tf.Variable([1.0, 2.0], name="own")
        reference = [variable]
        before = tf.function(lambda: variable + 1.0)
        before()
        move(variable, devices[1])
        assert place(variable) == 1
        assert reference[0] is variable and variable.name == "own:0" and variable.trainable
        np.testing.assert_array_equal(variable, [1, 2])
        variable.assign_add([1.0, 1.0])
        np.testing.assert_array_equal(variable, [2, 3])
        read = tf.function(lambda: variable + 1.0)
        np.testing.assert_array_equal(read(), [3, 4])
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(variable * variable)
        np.testing.assert_array_equal(tape.gradient(total, variable), [4, 6])

        variable = tf.Variable([1.0, 2.0])
        move(variable, devices[1])
        path = tf.train.Checkpoint(v=variable).save(tempfile.mkdtemp() + "/ckpt")
        variable.assign([0.0, 0.0])
        tf.train.Checkpoint(v=variable).restore(path)
        np.testing.assert_array_equal(variable, [1, 2])
        assert place(variable) == 1
        """
    )


def test_a_variable_that_is_in_place_is_not_copied() -> None:
    variable = tf.Variable([1.0])
    handle = variable.handle
    move(variable, "/device:CPU:0")
    assert variable.handle is handle


@pytest.mark.parametrize(("dtype", "size"), [(tf.float32, 24), (tf.float16, 12), (tf.int64, 48)])
def test_the_size_of_a_variable_depends_on_its_type(dtype: tf.DType, size: int) -> None:
    assert bytes_of(tf.Variable(tf.zeros([2, 3], dtype))) == size
