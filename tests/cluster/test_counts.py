"""Over the entire cluster, every example is trained on once per epoch and evaluated once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import PROGRAM, directories, launch, results

pytestmark = [
    pytest.mark.stacks(
        "2.15",
        "2.21",
        horovod=("2.15", "newest"),
    ),
    pytest.mark.timeout(150),
]

EXACT = {
    "one_device": [],
    "mirrored": ["--num_cpu_devices=2"],
    "multi_worker_mirrored": [],
    "parameter_server": [],
}
if keras_is_3():  # The others differ only in TensorFlow.
    del EXACT["one_device"], EXACT["mirrored"], EXACT["multi_worker_mirrored"]
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


@pytest.mark.parametrize(
    ("strategy", "known_size", "evaluated"),
    [
        *((strategy, "--noknown_size", 11) for strategy in EXACT),
        *[("parameter_server", "--known_size", 2)] * (not keras_is_3()),
    ],
)
def test_each_example_is_used_once_per_epoch(
    tmp_path: Path, strategy: str, known_size: str, evaluated: int
) -> None:
    # 3 workers have 14, 14 and 13 of 41 examples: 4 steps, the last with 2, 2 and 1 examples.
    flags = [*EXACT[strategy], "--examples=41", f"--eval_examples={evaluated}", "--batch_norm"]
    found = count(tmp_path, strategy, *flags, known_size)
    for task in found.values():
        assert task["counts"].shape == (2, 41)
        np.testing.assert_array_equal(task["counts"], 1)
        # The logs of the steps agree; with Keras 3 they contain the mean over the replicas.
        replicas = REPLICAS.get(strategy, 1) if keras_is_3() else 1
        np.testing.assert_allclose(task["last_seen"], 41 / replicas, rtol=1e-6)
        assert np.isfinite(task["weights"]).all()
        np.testing.assert_array_equal(task["val_seen"], evaluated)
        assert task["evaluated_seen"] == evaluated
        # Traces of training and validation steps, for each replica of the task.
        assert keras_is_3() or task["traces"] == (6 if strategy == "mirrored" else 3)


@pytest.mark.parametrize(
    "strategy",
    ["parameter_server"] if keras_is_3() else ["multi_worker_mirrored"],
)
def test_tfdist_shards_an_input_function_without_a_parameter(tmp_path: Path, strategy: str) -> None:
    """Each task creates the whole dataset, which shuffles without a seed."""
    flags = [*EXACT[strategy], "--examples=41", "--batch_size=2", "--whole_input"]
    found = count(tmp_path, strategy, *flags)
    for task in found.values():
        np.testing.assert_array_equal(task["counts"], [[1] * 41] * 2)
        np.testing.assert_array_equal(task["val_seen"], 11)
        assert task["evaluated_seen"] == 11


@pytest.mark.stacks("newest")
@pytest.mark.horovod
def test_horovod_shards_an_input_function_without_a_parameter(tmp_path: Path) -> None:
    # 21 batches, 7 for each rank, the last with one example.
    found = count(tmp_path, "horovod", "--examples=41", "--batch_size=2", "--whole_input")
    total = sum(task["counts"] for task in found.values())
    np.testing.assert_array_equal(total, [[1] * 41] * 2)


def test_central_storage_uses_each_example_once_in_the_last_step(tmp_path: Path) -> None:
    # 41 examples are 11 batches of 4: in the last step the second device has no batch.
    (found,) = count(
        tmp_path, "central_storage", "--num_cpu_devices=2", "--examples=41", "--batch_norm"
    ).values()
    np.testing.assert_array_equal(found["counts"], [[1] * 41] * 2)
    assert np.isfinite(found["weights"]).all()
    np.testing.assert_array_equal(found["val_seen"], 11)
    assert found["evaluated_seen"] == 11


@pytest.mark.stacks("2.15")
@pytest.mark.horovod
def test_horovod_uses_each_example_once_if_ranks_have_other_numbers(tmp_path: Path) -> None:
    # The ranks have 5, 4 and 4 of 13 examples: 2, 1 and 1 steps. One rank has none to evaluate.
    found = count(tmp_path, "horovod", "--examples=13", "--eval_examples=2", "--batch_norm")
    total = sum(task["counts"] for task in found.values())
    np.testing.assert_array_equal(total, np.ones([2, 13]))
    assert {int(task["steps"]) for task in found.values()} == {4}
    for task in found.values():
        np.testing.assert_array_equal(task["val_seen"], 2)
        assert task["evaluated_seen"] == 2
