"""A model split over two devices of one process: what changes from one `fit` to the next."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.stacks("2.15", "newest")

PROGRAM = """
import tfdist
import time
import numpy as np
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.compat.replaced import fitting
from tfdist.errors import UsageError
from tfdist.config.role import TaskSettings
from tfdist.strategies.in_graph import strategy as module
from tfdist.strategies.in_graph.grid import Grid
from tfdist.strategies.in_graph.variables import tensorflow_variable
from tfdist.config.strategies.rows import InGraphOptions

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
module.use_devices = lambda *_, **__: None
layers = tf.keras.layers

options = InGraphOptions(stages=2, microbatches=2)
strategy = module.InGraph(TaskSettings(options=options))
devices = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
strategy.grid = Grid((Task("worker", 0), Task("worker", 1)), devices, devices[0], 2)
strategy._element_spec = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])


def train(model, **compiled_with):
    model.compile("sgd", "mse", **compiled_with)
    with fitting():
        strategy.prepare(model)
        model.fit(np.ones([8, 4], "f"), np.ones([8, 1], "f"), batch_size=8, verbose=0)


sizes = []


class Slow(layers.Layer):
    def call(self, inputs):
        def note(values):
            sizes.append(len(values))
            time.sleep(0.05)

        with tf.control_dependencies([tf.py_function(note, [inputs], [])]):
            return tf.identity(inputs)


# Stage 0 has a frozen embedding, whose inputs have no gradient.
first = layers.Embedding(2, 4, trainable=False)
last = [layers.Flatten(), layers.Dense(5, "tanh"), Slow(), layers.Dense(1)]
model = tf.keras.Sequential([tf.keras.Input([4]), first, *last])
train(model)
split = strategy.split_model
train(model)
assert strategy.split_model is split

# A layer that is no longer frozen trains.
before = np.array(first.embeddings)
first.trainable = True
train(model)
assert strategy.split_model is not split
assert np.abs(np.array(first.embeddings) - before).max() > 0

# The arguments of a later `compile` are checked, too.
try:
    train(model, run_eagerly=True)
except UsageError as error:
    assert "run_eagerly" in str(error)
else:
    raise AssertionError("it was accepted")

# A gradient of a gradient would be wrong.
variables = [tensorflow_variable(variable) for variable in model.trainable_variables]


@tf.function
def penalty(values):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(values)
            result = tf.reduce_sum(model(values))
        squares = tf.reduce_sum(inner.gradient(result, values) ** 2)
    return outer.gradient(squares, variables)


try:
    with fitting():
        strategy.split_model.apply()
        penalty(tf.ones([8, 4]))
except UsageError as error:
    assert "a gradient of a gradient" in str(error)
else:
    raise AssertionError("it was accepted")

# A model within the next one has its own methods again: the next one has the parts.
other = tf.keras.Sequential([tf.keras.Input([4]), model, layers.Dense(1)])
sizes.clear()
train(other)
assert sizes == [4, 4], sizes
places = [tensorflow_variable(v).device[-1] for v in other.trainable_variables]
assert places == sorted(places) and {*places} == {"0", "1"}, places


class Complex(layers.Layer):
    def call(self, inputs):
        return tf.complex(inputs, inputs)


# A complex output has a gradient.
wave = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(2), layers.Dense(1), Complex()])
variables = [tensorflow_variable(variable) for variable in wave.trainable_variables]


def gradients():
    with tf.GradientTape() as tape:
        result = tf.reduce_sum(tf.abs(wave(tf.ones([8, 4]))))
    return tape.gradient(result, variables)


expected = [gradient.numpy() for gradient in gradients()]
wave.compile("sgd", "mse")
strategy.prepare(wave)
for found, own in zip(tf.function(gradients)(), expected):
    np.testing.assert_allclose(found, own, rtol=1e-5)
"""


def test_a_model_is_split_again_when_it_changes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
