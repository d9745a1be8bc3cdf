"""A legacy optimizer of Keras 2 creates variables when its hyperparameters are first read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(300)]

SCRIPT = """
import tfdist
import tensorflow as tf


def build_model():
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.legacy.Adam(0.01), "mse")
    return model


@tfdist.main
def main(job):
    data = tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0])).repeat(16).batch(4)
    job.fit(build_model, data, epochs=1, output_dir=OUTPUT)


tfdist.run(main)
"""


def test_trains_on_several_tasks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("OUTPUT", repr(str(tmp_path / "output"))))
    flags = ("--strategy=multi_worker_mirrored", "--workers=2")
    ended = launch(tmp_path / "log", *flags, str(script), deadline=200)
    assert ended.code == 0, ended.output
    assert (tmp_path / "output" / "done.json").exists()
