"""Batches of a static size are all used, also if their number is no multiple of the replicas'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.processes import run_by_hand

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(400)]

SCRIPT = """
import tfdist
import tensorflow as tf

def build_model(job):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def train_input(context):
    examples = tf.data.Dataset.from_tensor_slices((tf.ones([24, 4]), tf.ones([24, 1])))
    return examples.batch(8, drop_remainder=True)

@tfdist.main
def main(job):
    history = job.fit(build_model, train_input, epochs=2, output_dir=__file__ + ".output")
    print("updates", int(history.model.optimizer.iterations.numpy()))

if __name__ == "__main__":
    tfdist.run(main)
"""


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_the_last_step_is_made(strategy: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = [f"--strategy={strategy}", "--num_cpu_devices=2"]
    command = [sys.executable, str(script), *flags]
    done = run_by_hand(tmp_path, {"script": (command, {})}, deadline=90)["script"]
    assert done.code == 0, done.output
    assert "updates 4" in done.output
