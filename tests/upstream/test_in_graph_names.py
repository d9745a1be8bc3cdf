"""What `in_graph` uses of TensorFlow without a public API, and why.

A test fails when the private name is gone or behaves in another way, or when the reason is gone:
then use the public API in the module of `tfdist/strategies/in_graph` that the test names.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import record

import tfdist  # noqa: F401
from tfdist.strategies.in_graph.variables import reading

pytestmark = pytest.mark.stacks("2.15", "2.21")


def run(script: str) -> list[str]:
    """The lines that a new process prints: a process can set logical devices only once."""
    setup = """
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, logical)
    """
    program = textwrap.dedent(setup) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_variable_has_no_public_way_to_another_device() -> None:
    """`variables.move` gives a variable another handle."""
    output = run(
        """
        variable = tf.Variable([1.0, 2.0])
        with tf.device("CPU:1"):
            other = tf.Variable([3.0, 4.0])
        variable._handle = other.handle
        print(variable.device[-1], variable.numpy()[0], variable.handle is other.handle)
        variable.assign([5.0, 6.0])
        print(other.numpy()[0])
        try:
            variable.handle = other.handle
        except AttributeError:
            print("no setter")
        """
    )
    assert output == ["1", "3.0", "True", "5.0", "no", "setter"]


def test_a_variable_is_read_with_its_method_value() -> None:
    """`variables.reading` gives a part the weights of its replica."""
    variable = tf.Variable([1.0])

    @tf.function
    def read() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        with reading([(variable, tf.constant([2.0]))]):
            read_as = (variable + 0.0, tf.convert_to_tensor(variable), variable.value())
            return (*read_as, variable.read_value())

    found = [float(value[0]) for value in read()]
    # `read_value` reads the variable itself: the strategy reads the weights with it.
    assert found == [2.0, 2.0, 2.0, 1.0]
    assert variable.value().numpy()[0] == 1.0


def test_a_recorded_operation_has_the_given_gradient() -> None:
    """`model_call.ModelCall` records a call of the model."""
    variable = tf.Variable([3.0])

    @tf.function
    def gradients() -> list[tf.Tensor]:
        inputs = tf.constant([2.0])

        def backward(gradient: tf.Tensor) -> list[tf.Tensor]:
            return [gradient * 10, gradient * 100]

        with tf.GradientTape() as tape:
            tape.watch(inputs)
            tape.watch(variable)
            with record.stop_recording():
                output = inputs * variable.read_value()
            record.record_operation("own", [output], [inputs, variable.handle], backward)
            result = output * 2.0
        return tape.gradient(result, [inputs, variable])

    np.testing.assert_array_equal([float(value[0]) for value in gradients()], [20, 200])


def test_a_recorded_operation_leaves_the_weights_where_they_are() -> None:
    """The reason for `record`: `tf.custom_gradient` sends all tensors through one IdentityN."""

    @tf.function
    def call(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def layer(*values: tf.Tensor) -> tuple[list[tf.Tensor], object]:
            return [value * 2 for value in values], lambda *gradients: gradients

        return sum(layer(first, second))

    vector = tf.TensorSpec([2])
    graph = call.get_concrete_function(vector, vector).graph
    merged = [operation for operation in graph.get_operations() if operation.type == "IdentityN"]
    # The inputs and the outputs of the layer.
    assert [len(operation.inputs) for operation in merged] == [4]


def test_a_call_is_converted_as_keras_2_does_it() -> None:
    """`pipeline.Pipeline.call_of_model`"""
    context = tf.__internal__.autograph.control_status_ctx()

    def call(value: tf.Tensor) -> tf.Tensor:
        if value > 0:
            return value
        return -value

    @tf.function(autograph=False)
    def run_converted(value: tf.Tensor) -> tf.Tensor:
        return tf.__internal__.autograph.tf_convert(call, context)(value)

    assert float(run_converted(tf.constant(-2.0))) == 2.0
