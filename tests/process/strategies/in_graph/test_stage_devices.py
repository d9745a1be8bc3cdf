"""Operations without a layer run where their inputs are."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from tests.support.processes import ROOT
from tfdist.strategies.in_graph.stage_devices import following_inputs

pytestmark = pytest.mark.stacks("2.15", "newest")

FIRST, SECOND, OTHER = (f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(3))
RANKS = {FIRST: 0, SECOND: 1}


def vector(device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.compat.v1.placeholder(tf.float32, [2])


def test_an_operation_runs_where_its_input_is() -> None:
    with tf.Graph().as_default(), tf.compat.v1.device(following_inputs(RANKS)):
        assert tf.square(vector(SECOND)).device == SECOND


def test_the_highest_rank_wins() -> None:
    with tf.Graph().as_default(), tf.compat.v1.device(following_inputs(RANKS)):
        first, second = vector(FIRST), vector(SECOND)
        assert (first + second).device == SECOND
        assert (second + first).device == SECOND
        assert (tf.square(first) + tf.square(second)).device == SECOND


def test_scalars_and_other_devices_have_no_influence() -> None:
    with tf.Graph().as_default(), tf.compat.v1.device(following_inputs(RANKS)):
        with tf.device(SECOND):
            scalar = tf.compat.v1.placeholder(tf.float32, [])
        assert (vector(FIRST) * scalar).device == FIRST
        assert tf.square(vector(OTHER)).device == ""
        assert (tf.square(scalar)).device == ""


def test_a_device_that_is_set_stays() -> None:
    with (
        tf.Graph().as_default(),
        tf.compat.v1.device(following_inputs(RANKS)),
        tf.device(FIRST),
    ):
        assert tf.square(vector(SECOND)).device == FIRST


def test_an_update_runs_where_the_variable_is_also_within_a_function() -> None:
    script = """
        import tfdist
        import tensorflow as tf

        from tfdist.strategies.in_graph.stage_devices import following_inputs

        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, logical)
        first, second = (device.name for device in tf.config.list_logical_devices("CPU"))
        # As in the strategy: a variable's device also has the job.
        with tf.device(second):
            variable = tf.Variable([1.0, 2.0])
        ranks = {variable.device.replace("CPU:1", "CPU:0"): 0, variable.device: 1}

        @tf.function
        def update():
            with tf.compat.v1.device(following_inputs(ranks)):
                halved = variable.read_value() / 2
                for value in (halved, tf.gather(variable, [1]) + 1.0):
                    assert value.device == variable.device, value.device
            return halved

        @tf.function
        def nested():
            def branch():
                doubled = variable.read_value() * 2
                assert doubled.device == variable.device, doubled.device
                return doubled

            with tf.compat.v1.device(following_inputs(ranks)):
                return tf.cond(tf.constant(True), branch, branch)

        update()
        nested()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
