"""One task ends `fit` in all; then the chief may use the model alone, without the other tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15", "newest", horovod=("newest",)), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "after_fit_program.py")

# Trains with tfdist's callbacks, and then without them.
TWICE = """
import sys, tempfile
import tensorflow as tf
import tfdist

@tfdist.main
def main(job):
    def train_input(context):
        data = tf.data.Dataset.from_tensor_slices((tf.ones([12, 2]), tf.ones([12, 1])))
        return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)

    with job.scope():
        model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    directory = {output!r}
    data = job.dataset(train_input)
    model.fit(data, epochs=1, callbacks=job.callbacks(directory), verbose=0)
    for batch in data:
        pass
    print("alone from here", flush=True)
    model.fit(data, epochs=1, class_weight={{0: 1.0, 1: 1.0}}, verbose=0)

if __name__ == "__main__":
    tfdist.run(main)
"""


@pytest.mark.parametrize(
    ("strategy", "alone"), [("horovod", ["worker:0", "worker:1"]), ("in_graph", ["worker:0"])]
)
def test_tasks_that_train_alone_say_so(strategy: str, alone: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWICE.format(output=str(tmp_path / "output")))
    ended = launch(
        tmp_path / "log", f"--strategy={strategy}", "--workers=2", str(script), deadline=100
    )
    assert ended.code == 0, ended.output
    told = r"warning: model.fit without job.callbacks: (\S+) trains alone"
    assert sorted(re.findall(told, ended.output)) == alone
    # A task tells it itself, in the order of what it prints.
    for task in alone:
        own = [line for line in ended.output.splitlines() if f"[{task}]" in line]
        begins = next(number for number, line in enumerate(own) if "alone from here" in line)
        assert not re.search(told, "\n".join(own[:begins]))


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        *[("multi_worker_mirrored", ["--workers=2"])] * keras_is_3(),
        ("horovod", ["--workers=2"]),
        *[("parameter_server", ["--workers=2", "--ps=1", "--sync"])] * keras_is_3(),
        ("in_graph", ["--workers=2", "--stages=2"]),
        *[("mirrored", ["--num_cpu_devices=2", "--accumulate_steps=2"])] * (not keras_is_3()),
    ],
)
def test_the_chief_predicts_evaluates_and_saves_alone(
    strategy: str, flags: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    arguments = [f"--strategy={strategy}", *flags, PROGRAM, f"--output_dir={output}"]
    ended = launch(tmp_path / "log", *arguments, deadline=150)
    assert ended.code == 0, ended.output
    if strategy in ("multi_worker_mirrored", "horovod"):
        assert re.search(
            "stopping after step [34] of epoch 2: worker:1 set stop_training", ended.output
        )
        assert json.loads((output / "done.json").read_text())["finished"] == 2
    # `fit` has given back all methods of Keras's and TensorFlow's objects, and so has `evaluate`.
    assert json.loads((output / "left.json").read_text()) == []

    predictions = np.load(output / "predictions.npz")
    for name in predictions.files:
        np.testing.assert_allclose(
            predictions[name], predictions["exported"], atol=1e-6, err_msg=name
        )
    metrics = json.loads((output / "metrics.json").read_text())
    assert {"accuracy", "activity", "auc", "loss"} == set(metrics["alone"])
    assert metrics["alone"] == pytest.approx(metrics["all"], abs=1e-5)
