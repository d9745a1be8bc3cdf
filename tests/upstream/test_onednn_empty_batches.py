"""A replica without examples gets the same results with oneDNN as without it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(120)]

_WITH_ONEDNN = """
import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"

import tensorflow as tf

layers = tf.keras.layers


def shapes(layer, shape):
    '''Prints the shapes of a layer's result and gradients for an empty batch.'''
    layer.build([None, *shape])

    @tf.function(input_signature=[tf.TensorSpec([None, *shape])])
    def call(batch):
        with tf.GradientTape() as tape:
            tape.watch(batch)
            result = layer(batch)
            loss = tf.reduce_sum(result * result)
        return result, tape.gradient(loss, [batch, *layer.trainable_weights])

    result, gradients = call(tf.zeros([0, *(size or 3 for size in shape)]))
    assert not any(tf.reduce_any(gradient != 0) for gradient in gradients)
    print(type(layer).__name__, *result.shape, *gradients[0].shape[1:])


"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    program = _WITH_ONEDNN + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )


def test_onednn_gives_a_convolution_of_an_empty_batch_the_shape_of_its_input() -> None:
    """The workaround is `tfdist.upstream.onednn_empty_batches`."""
    found = run(
        """
        kernel = tf.ones([3, 3, 5, 7])
        print(*tf.nn.conv2d(tf.zeros([0, 8, 8, 5]), kernel, 2, "SAME").shape)
        """
    )
    assert found.stdout.split() == ["0", "8", "8", "5"], found.stderr


def test_onednn_crashes_in_the_gradient_of_pooling_an_empty_batch() -> None:
    """The workaround is `tfdist.upstream.onednn_empty_batches`."""
    found = run("shapes(layers.MaxPooling2D(), [8, 8, 5])")
    assert found.returncode < 0
    assert "Check failed: dtype() == expected_dtype" in found.stderr


def test_exported_functions_are_not_changed() -> None:
    found = run(
        """
        from tfdist.upstream.onednn_empty_batches import (
            as_tensorflow_does,
            apply,
        )

        apply()
        kernel = tf.ones([1, 1, 1, 1])

        def operations():
            convolution = tf.function(lambda batch: tf.nn.conv2d(batch, kernel, 1, "SAME"))
            traced = convolution.get_concrete_function(tf.TensorSpec([None, 2, 2, 1]))
            return {operation.type for operation in traced.graph.get_operations()}

        print("Reshape" in operations())
        with as_tensorflow_does():
            print("Reshape" in operations())
        """
    )
    assert found.stdout.split() == ["True", "False"], found.stderr


def test_layers_accept_empty_batches() -> None:
    found = run(
        """
        from tfdist.upstream.onednn_empty_batches import apply

        apply()
        apply()
        shapes(layers.Conv1D(7, 3, strides=2), [8, 5])
        shapes(layers.Conv2D(7, 3, strides=2, activation="relu"), [8, 8, 5])
        shapes(layers.Conv3D(7, 3), [8, 8, 8, 5])
        shapes(layers.Conv2DTranspose(7, 3, strides=2), [8, 8, 5])
        shapes(layers.DepthwiseConv2D(3, depth_multiplier=2), [8, 8, 5])
        shapes(layers.SeparableConv2D(7, 3), [8, 8, 5])
        shapes(layers.MaxPooling1D(2), [8, 5])
        shapes(layers.MaxPooling2D(), [8, 8, 5])
        shapes(layers.MaxPooling3D(2), [8, 8, 8, 5])
        shapes(layers.AveragePooling2D(2), [8, 8, 5])
        shapes(layers.GlobalMaxPooling2D(), [8, 8, 5])
        shapes(layers.BatchNormalization(), [8, 8, 5])
        shapes(layers.Conv2D(7, 3, strides=2), [None, 8, 5])
        """
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "Conv1D 0 3 7 8 5",
        "Conv2D 0 3 3 7 8 8 5",
        "Conv3D 0 6 6 6 7 8 8 8 5",
        "Conv2DTranspose 0 17 17 7 8 8 5",
        "DepthwiseConv2D 0 6 6 10 8 8 5",
        "SeparableConv2D 0 6 6 7 8 8 5",
        "MaxPooling1D 0 4 5 8 5",
        "MaxPooling2D 0 4 4 5 8 8 5",
        "MaxPooling3D 0 4 4 4 5 8 8 8 5",
        "AveragePooling2D 0 4 4 5 8 8 5",
        "GlobalMaxPooling2D 0 5 8 8 5",
        "BatchNormalization 0 8 8 5 8 8 5",
        "Conv2D 0 1 3 7 3 8 5",
    ]
