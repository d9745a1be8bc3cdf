"""The Estimator examples learn handwritten digits."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.pages import example
from tests.support.processes import ROOT, Ended, Tasks, cluster_of, launch, run_by_hand
from tfdist.data import cifar10
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

CIFAR10 = str(ROOT / "examples" / "cifar10_estimator_main.py")
# Synchronous parameter servers, with an evaluator; without `tfdist run`.
DOCUMENTED = example("estimators.md", "cifar10_estimator_main.py")[2:]
# A small version of the tutorial's network, for a few hundred steps on digits. Training on
# distorted images takes twice as many steps.
SMALL = ["--num_layers=8", "--batch_norm_decay=0.9", "--nouse_distortion_for_training"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    cifar10.write(directory, "digits")
    return directory


def accuracy(ended: Ended) -> float:
    assert ended.code == 0, ended.output
    (found,) = re.findall(r"test accuracy (\S+)", ended.output)
    return float(found)


def test_the_example_learns_digits(tmp_path: Path, digits: Path) -> None:
    output = tmp_path / "output"
    ended = launch(
        tmp_path,
        # The page's flags, and then those that replace some of them.
        *DOCUMENTED,
        f"--data_dir={digits}",
        f"--output_dir={output}",
        *SMALL,
        *["--train-steps=120", "--decay_epochs=2", "--train_batch_size=16"],
        deadline=200,
    )
    assert accuracy(ended) >= 0.9
    assert "Average examples/sec" in ended.output
    last = json.loads((output / "eval_metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] >= 0.9

    serve = tf.saved_model.load(str(output / "saved_model")).signatures["serving_default"]
    images, labels = next(iter(cifar10.dataset(digits, "eval", batch_size=360)))
    predicted = serve(images=images)
    assert np.mean(predicted["classes"].numpy() == labels.numpy()) >= 0.9
    np.testing.assert_allclose(np.sum(predicted["probabilities"], axis=1), 1, atol=1e-5)


def test_the_platforms_command_works_in_both_spellings(tmp_path: Path, digits: Path) -> None:
    """Two hosts, each with a ps and the master or a worker, configured only by TF_CONFIG."""
    output = tmp_path / "output"
    users = ["--train-batch-size=16", *SMALL, "--train-steps=320", "--decay-epochs=3"]
    platforms = ["--num_gpus=1", f"--work_dir={tmp_path}", f"--data_dir={digits}"]
    platforms += [f"--output_dir={output}", f"--log_dir={output}"]
    spellings = [
        [*users, *platforms],
        [
            *("--" + argument[2:].replace("-", "_") for argument in users),
            *(argument.replace("num_gpus", "num_gpu") for argument in platforms),
        ],
    ]
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=2)
        tasks: Tasks = {}
        for task in cluster.tasks():
            config = cluster.tf_config(task).replace('"chief"', '"master"')
            config = json.dumps({**json.loads(config), "environment": "cloud"})
            of_second_host = str(task) in ("worker:0", "ps:1")
            command = [sys.executable, CIFAR10, *spellings[of_second_host]]
            tasks[str(task)] = (command, {"TF_CONFIG": config})
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=200)
    for name, task_end in ended.items():
        assert task_end.code == 0, f"{name}: {task_end.output}"
        assert task_end.time - ended["chief:0"].time < 20, f"{name} exited late"
    assert accuracy(ended["chief:0"]) >= 0.9


@pytest.mark.parametrize(
    ("options", "script", "flags"),
    [
        (
            ["--strategy=horovod", "--workers=2"],
            "mnist_horovod_estimator.py",
            ["--train_steps=120", "--learning_rate=0.01"],
        ),
        (["--ps=1", "--workers=2"], "mnist_replica.py", ["--issync=1"]),
        (["--ps=1", "--workers=2"], "mnist_replica.py", ["--issync=0", "--train-steps=800"]),
    ],
)
def test_the_mnist_examples_learn_digits(
    tmp_path: Path, options: list[str], script: str, flags: list[str]
) -> None:
    ended = launch(
        tmp_path,
        *options,
        str(ROOT / "examples" / script),
        f"--output_dir={tmp_path / 'output'}",
        *flags,
        deadline=200,
    )
    assert accuracy(ended) >= 0.9
    assert ("stale and dropped" in ended.output) == ("--issync=1" in flags)


def test_session_code_rejects_an_evaluator(tmp_path: Path) -> None:
    ended = launch(
        tmp_path,
        *["--ps=1", "--workers=1", "--chief", "--evaluator"],
        str(ROOT / "examples" / "mnist_replica.py"),
        f"--output_dir={tmp_path / 'output'}",
        deadline=60,
    )
    assert ended.code == 2, ended.output
    assert "task.type: received 'evaluator, for session code'" in ended.output
