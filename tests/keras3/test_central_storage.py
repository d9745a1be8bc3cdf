"""Metrics under `central_storage`, whose replicas share the variables and assign sums to them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(120)]

_SCRIPT = """
import json
import sys

import numpy as np
import tfdist.entry
import tensorflow as tf
from tfdist.config.flags import JobFlags

devices = int(sys.argv[1])
name = "central_storage" if devices > 1 else "one_device"
job = tfdist.entry.create(
    JobFlags.of(strategy=name, num_cpu_devices=devices if devices > 1 else None), {}
)
labels = (np.arange(40) % 3 == 0).astype("float32")[:, None]
features = np.linspace(0.0, 1.0, 40, dtype="float32")[:, None]

with job.scope():
    frozen = tf.keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
    layer = tf.keras.layers.Dense(
        1, "sigmoid", kernel_initializer="ones", kernel_constraint=tf.keras.constraints.NonNeg()
    )
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), frozen, layer])
    metrics = [tf.keras.metrics.Precision(0.6, name="precision"), "mae"]
    model.compile(job.wrap_optimizer(tf.keras.optimizers.Nadam(0.0)), "mse", metrics=metrics)

def data(context):
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return dataset.batch(8 // job.num_replicas)

untrained = model.evaluate(job.eval_dataset(data), verbose=0, return_dict=True)
history = model.fit(
    job.dataset(data),
    epochs=2,
    validation_data=job.eval_dataset(data),
    callbacks=job._strategy.callbacks(),
    verbose=0,
)
found = {"untrained": untrained, "evaluated": job.evaluate(model, data), **history.history}
print(json.dumps(found))
"""


def metrics(devices: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(devices)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_metrics_equal_those_of_one_device() -> None:
    one, two = metrics(1), metrics(2)
    assert one.keys() == two.keys() >= {"loss", "mae", "precision", "val_precision"}
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5), name
