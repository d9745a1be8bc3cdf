"""Canaries for the workarounds that Estimators need; see `tfdist.upstream`."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

# In a new process, because these change TensorFlow's state.
ROWS = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
{fix}
v1 = tf.compat.v1
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with tf.Graph().as_default():
    indices = v1.placeholder(tf.int64, [None])
    with strategy.scope():
        def gradient():
            replica = tf.distribute.get_replica_context()
            values = tf.ones([tf.shape(indices)[0], 2])
            slices = tf.IndexedSlices(values, indices, tf.constant([5, 2], tf.int64))
            return replica.all_reduce("sum", slices)
        totals = strategy.experimental_local_results(strategy.run(gradient))
    totals = list(map(tf.convert_to_tensor, totals))
    with v1.Session(config=v1.ConfigProto(device_count={{"CPU": 2}})) as session:
        for rows in ([0, 1, 2], [3]):
            print(session.run(totals, {{indices: rows}})[0].sum())
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )


def test_rows_that_differ_stop_a_session() -> None:
    ended = run(ROWS.format(fix=""))
    assert ended.returncode != 0
    assert "Shape mismatch in the collective" in ended.stderr
    fix = (
        "from tfdist.strategies.replicas import collective_sparse_gradients as f; f.apply(); "
        "f.apply()"
    )
    ended = run(ROWS.format(fix=fix))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["12.0", "4.0"]


COUNTER = """
import tensorflow as tf
{fix}
optimizer = tf.keras.optimizers.legacy.SGD(0.1)
step = tf.Variable(0, dtype=tf.int64)
optimizer.iterations = step
optimizer.iterations = step
"""


def test_the_counter_of_an_optimizer_is_set_once() -> None:
    ended = run(COUNTER.format(fix=""))
    assert "Cannot set `iterations` to a new Variable" in ended.stderr
    fix = "from tfdist.upstream import keras_optimizer_iterations as f; f.apply(); f.apply()"
    ended = run(COUNTER.format(fix=fix))
    assert ended.returncode == 0, ended.stderr
    other = COUNTER.format(fix=fix) + "optimizer.iterations = tf.Variable(0, dtype=tf.int64)"
    assert "Cannot set `iterations` to a new Variable" in run(other).stderr
