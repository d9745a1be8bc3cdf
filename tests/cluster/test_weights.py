"""Synchronous strategies give the same weights as one process with the same global batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import installed_stack, keras_is_3
from tests.support.processes import PROGRAM, directories, launch, results

pytestmark = [
    pytest.mark.stacks(
        "2.15",
        "2.21",
        # In tf_keras, `tfdist test` trains with every strategy.
        horovod=("2.15", "newest"),
    ),
    pytest.mark.timeout(150),
]

# 100 steps with 8 examples each, regardless of the number of replicas.
EXAMPLES, GLOBAL_BATCH, EPOCHS = 80, 8, 10
# Averaging the weights after a momentum step is the same as averaging the gradients before it.
AVERAGING = ("multi_worker_mirrored", "--sync_period=1")
# By stack; `test_habits` trains with every strategy.
TWO_REPLICAS: dict[str, list[tuple[str, ...]]] = {
    "2.15": [
        ("mirrored", "--num_cpu_devices=2"),
        ("multi_worker_mirrored",),
        AVERAGING,
        ("mirrored", "--num_cpu_devices=2", "--accumulate_steps=2"),
        ("horovod", "--accumulate_steps=2"),
    ],
    "2.21": [AVERAGING, ("multi_worker_mirrored", "--accumulate_steps=2")],
}
SERVERS = ["--ps=1", "--chief"]


def train(
    path: Path, strategy: str, batch_size: int, *flags: str, workers: int = 2
) -> dict[str, dict]:
    spans_tasks = ("multi_worker_mirrored", "horovod", "parameter_server")
    workers = workers if strategy in spans_tasks else 1
    ended = launch(
        path,
        f"--strategy={strategy}",
        f"--workers={workers}",
        *(SERVERS if strategy == "parameter_server" else []),
        PROGRAM,
        *directories(path),
        f"--examples={EXAMPLES}",
        f"--batch_size={batch_size}",
        f"--epochs={EPOCHS}",
        *flags,
        deadline=120,
    )
    assert ended.code == 0, ended.output
    return results(path)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    (found,) = train(tmp_path_factory.mktemp("one"), "one_device", GLOBAL_BATCH).values()
    assert found["steps"] == 100
    assert found["losses"][-1] < found["losses"][0] / 5, "the model should have learned"
    assert keras_is_3() or found["traces"] == 2
    return found


@pytest.mark.parametrize("job", TWO_REPLICAS[installed_stack()], ids=" ".join)
def test_weights_equal_those_of_one_process(
    tmp_path: Path, job: tuple[str, ...], one_process: dict[str, np.ndarray]
) -> None:
    strategy, *flags = job
    # Averaging weights has larger rounding errors than averaging gradients.
    tolerance = 1e-5 if flags == ["--sync_period=1"] else 1e-6
    batches = 4 if "--accumulate_steps=2" in flags else 2
    found = train(tmp_path, strategy, GLOBAL_BATCH // batches, *flags)
    tasks = list(found.values())
    for task in tasks:
        assert task["steps"] == 100
        np.testing.assert_allclose(task["weights"], one_process["weights"], rtol=0, atol=tolerance)
        np.testing.assert_allclose(task["losses"], one_process["losses"], rtol=1e-4)
        np.testing.assert_array_equal(task["weights"], tasks[0]["weights"])
        # Training and evaluation steps are traced once for each replica of the task.
        assert keras_is_3() or batches == 4 or task["traces"] == 4 // len(tasks)
    assert len(tasks) == (2 if strategy in ("multi_worker_mirrored", "horovod") else 1)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_16_bit_gradients_are_rounded_and_equal_in_all_tasks(
    tmp_path: Path, strategy: str, one_process: dict[str, np.ndarray]
) -> None:
    found = train(tmp_path, strategy, GLOBAL_BATCH // 2, "--gradient_dtype=float16")

    one, other = found.values()
    np.testing.assert_array_equal(one["weights"], other["weights"])
    np.testing.assert_allclose(one["weights"], one_process["weights"], rtol=0, atol=1e-2)
    assert np.abs(one["weights"] - one_process["weights"]).max() > 1e-5


def test_adam_on_parameter_servers_equals_adam_in_one_process(tmp_path: Path) -> None:
    (one,) = train(tmp_path / "one", "one_device", GLOBAL_BATCH, "--adam").values()
    (found,) = train(
        tmp_path / "sync", "parameter_server", GLOBAL_BATCH // 2, "--sync", "--adam"
    ).values()
    assert found["steps"] == one["steps"] == 100
    np.testing.assert_allclose(found["weights"], one["weights"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["losses"], one["losses"], rtol=1e-4)


def test_a_worker_of_parameter_servers_accumulates(
    tmp_path: Path, one_process: dict[str, np.ndarray]
) -> None:
    flags = ("--accumulate_steps=2",)
    (found,) = train(tmp_path, "parameter_server", GLOBAL_BATCH // 2, *flags, workers=1).values()
    assert found["steps"] == 100
    np.testing.assert_allclose(found["weights"], one_process["weights"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["losses"], one_process["losses"], rtol=1e-4)
