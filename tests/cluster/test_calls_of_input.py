"""A training calls the user's input function once for each shard that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [
    pytest.mark.stacks("2.15", "newest", horovod=("2.15",)),
    pytest.mark.timeout(150),
]

# Of five batches, the second of two shards has one fewer.
SCRIPT = """
import os

import tfdist
import tensorflow as tf
from absl import flags

calls = []
DIRECTORY = flags.DEFINE_string("directory", None, "")


def build_model(job):
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def train_input(context):
    calls.append(context)
    dataset = tf.data.Dataset.from_tensor_slices((tf.ones([20, 2]), tf.ones([20, 1]))).batch(4)
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.shuffle(5)


@tfdist.main
def main(job):
    job.fit(build_model, train_input, epochs=2, output_dir=f"{DIRECTORY.value}/run", verbose=0)
    with open(f"{DIRECTORY.value}/{job.task.index}.calls", "w") as file:
        print(len(calls), file=file)


if __name__ == "__main__":
    tfdist.run(main)
"""

TWO = ["--workers=2"]


@pytest.mark.parametrize(
    ("strategy", "flags", "expected"),
    [
        ("one_device", [], [1]),
        ("mirrored", ["--num_cpu_devices=2"], [1]),
        ("central_storage", ["--num_cpu_devices=2"], [1]),
        ("multi_worker_mirrored", TWO, [1, 1]),
        ("multi_worker_mirrored", [*TWO, "--sync_period=2"], [1, 1]),
        ("in_graph", TWO, [1]),
        pytest.param("horovod", TWO, [1, 1], marks=pytest.mark.horovod),
        # The chief makes the datasets of both workers, and one to know the type of the elements.
        ("parameter_server", [*TWO, "--ps=1", "--chief"], [3]),
    ],
)
def test_the_input_function_is_called_once(
    tmp_path: Path, strategy: str, flags: list[str], expected: list[int]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    own = [str(script), f"--directory={tmp_path}"]
    ended = launch(tmp_path / "log", f"--strategy={strategy}", *flags, *own, deadline=120)
    assert ended.code == 0, ended.output
    assert "warning" not in ended.output
    assert [int(path.read_text()) for path in sorted(tmp_path.glob("*.calls"))] == expected
