"""Every example is trained on once an epoch and evaluated once, counted over the cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import PROGRAM, directories, launch, results

pytestmark = [pytest.mark.stacks("2.15", "2.21", "tf_keras"), pytest.mark.timeout(150)]

EXACT = {
    "one_device": [],
    "mirrored": ["--num_cpu_devices=2"],
    "multi_worker_mirrored": [],
    "parameter_server": [],
}
TASKS = {
    "multi_worker_mirrored": ["--workers=3"],
    "parameter_server": ["--workers=3", "--ps=2"],
    "horovod": ["--workers=3"],
}

REPLICAS = {"mirrored": 2, "multi_worker_mirrored": 3}


def count(path: Path, strategy: str, *flags: str) -> dict[str, dict[str, np.ndarray]]:
    launcher = [f"--strategy={strategy}", *TASKS.get(strategy, [])]
    ended = launch(path, *launcher, PROGRAM, *directories(path), "--validate", *flags, deadline=120)
    assert ended.code == 0, ended.output
    return results(path)


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize(("known_size", "evaluated"), [("--known_size", 2), ("--noknown_size", 11)])
def test_each_example_is_seen_once_an_epoch(
    tmp_path: Path, strategy: str, known_size: str, evaluated: int
) -> None:
    # 41 examples: 3 workers have 14, 14 and 13, and so 4 steps, the last with 2, 2 and 1.
    flags = [*EXACT[strategy], "--examples=41", f"--eval_examples={evaluated}", "--batch_norm"]
    found = count(tmp_path, strategy, *flags, known_size)
    for task in found.values():
        assert task["counts"].shape == (2, 41)
        np.testing.assert_array_equal(task["counts"], 1)
        # As the steps say it, too, where Keras sees them; those of Keras 3 say it of a replica.
        replicas = REPLICAS.get(strategy, 1) if keras_is_3() else 1
        np.testing.assert_allclose(task["last_seen"], 41 / replicas, rtol=1e-6)
        assert np.isfinite(task["weights"]).all()
        np.testing.assert_array_equal(task["val_seen"], evaluated)
        assert task["evaluated_seen"] == evaluated
        # A step of training and one of validation, for each replica of the task.
        assert keras_is_3() or task["traces"] == (6 if strategy == "mirrored" else 3)


def test_central_storage_repeats_no_more_than_fills_the_last_step(tmp_path: Path) -> None:
    # 41 examples in batches of 4 are 11 batches: the second device lacks one in the last step.
    (found,) = count(
        tmp_path, "central_storage", "--num_cpu_devices=2", "--examples=41", "--batch_norm"
    ).values()
    np.testing.assert_array_equal(found["counts"], [[2] + [1] * 40] * 2)
    assert np.isfinite(found["weights"]).all()
    np.testing.assert_array_equal(found["val_seen"], 11)
    assert found["evaluated_seen"] == 11


def test_horovod_repeats_one_example_for_each_step_that_a_rank_lacks(tmp_path: Path) -> None:
    # 13 examples: the ranks have 5, 4 and 4, and so 2 steps, 1 and 1; one has none to evaluate.
    found = count(tmp_path, "horovod", "--examples=13", "--eval_examples=2", "--batch_norm")
    total = sum(task["counts"] for task in found.values())
    expected = np.ones([2, 13])
    expected[:, [1, 2]] = 2
    np.testing.assert_array_equal(total, expected)
    assert {int(task["steps"]) for task in found.values()} == {4}
    for task in found.values():
        np.testing.assert_array_equal(task["val_seen"], 2)
        assert task["evaluated_seen"] == 2
