"""The CIFAR-10 example learns handwritten digits.

Where there is Slurm, tests/cluster/test_slurm.py has horovod and parameter servers, and
scripts/quickstart is the command of multi_worker_mirrored.

scripts/test tests/cluster/test_digits.py -rP    # shows the accuracies
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tests.support import slurm
from tests.support.pages import example
from tests.support.processes import ROOT, launch
from tfdist.config.strategies import table
from tfdist.data import cifar10

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(300)]

TASKS = {
    "parameter_server": ["--ps=1", "--workers=2", "--chief", "--evaluator"],
    "horovod": ["--workers=2"],
    "in_graph": ["--workers=2"],
}
FLAGS = {
    "in_graph": ["--stages=2", "--microbatches=2"],
}

EXAMPLE = str(ROOT / "examples" / "cifar10_main.py")
# multi_worker_mirrored with two workers; without `tfdist run`.
DOCUMENTED = example("clusters/one_machine.md", "cifar10_main.py")[2:]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    cifar10.write(directory, "digits")
    return directory


@pytest.mark.parametrize(
    "strategy",
    # Tests with smaller models compare mirrored and central_storage with one device.
    [
        name
        for name, row in table.rows().items()
        if (slurm.missing() and row.spans_tasks) or name == "one_device"
    ],
)
def test_the_example_learns_digits(tmp_path: Path, digits: Path, strategy: str) -> None:
    # The global batch is the same under every strategy, and so is the number of steps.
    replicas = 1 if strategy in ("one_device", "parameter_server", "in_graph") else 2
    # Asynchronous updates are noisier and vary from run to run.
    epochs, decays = (9, "6,8") if strategy == "parameter_server" else (6, "4,5")
    job = [f"--strategy={strategy}", *TASKS.get(strategy, []), EXAMPLE]
    ended = launch(
        tmp_path,
        # The page's flags; those that follow replace some of them.
        *(DOCUMENTED if strategy == "multi_worker_mirrored" else job),
        f"--data_dir={digits}",
        f"--output-dir={tmp_path / 'output'}",
        "--num_layers=8",
        f"--train-epochs={epochs}",
        f"--decay_epochs={decays}",
        f"--train-batch-size={32 // replicas}",
        f"--learning_rate={0.1 / replicas}",
        "--seed=1",
        "--batch_norm_decay=0.9",
        # Training on distorted images takes twice as many epochs.
        "--nouse_distortion_for_training",
        *FLAGS.get(strategy, []),
        deadline=240,
        # Importing TensorFlow takes long. Only one strategy starts new processes, as a user does.
        copies=keras_is_3() or strategy != "multi_worker_mirrored",
    )
    assert ended.code == 0, ended.output
    accuracies = re.findall(r"test accuracy (\S+)", ended.output)
    assert len(accuracies) == 1, "only the chief should report"
    assert float(accuracies[0]) >= 0.95, ended.output
    print(f"TensorFlow {tf.__version__} {strategy}: test accuracy {accuracies[0]}")
    if "--evaluator" in TASKS.get(strategy, []):
        lines = (tmp_path / "output" / "eval_metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        assert last["epoch"] == epochs
        assert last["accuracy"] >= 0.95

    saved = tmp_path / "output" / "saved_model"
    model = tf.keras.models.load_model(
        saved / "model.keras" if keras_is_3() else saved, compile=False
    )
    images, labels = next(iter(cifar10.dataset(digits, "eval", batch_size=360)))
    correct = np.argmax(model.predict(images, verbose=0), axis=1) == labels.numpy()
    assert correct.mean() >= 0.95
