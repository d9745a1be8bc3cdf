"""`--sync_period`: the tasks step independently; their weights are equal after each average."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import PROGRAM, directories, launch, results

# In tf_keras, test_weights.py has --sync_period.
pytestmark = [
    pytest.mark.stacks(
        "newest",
        horovod=("2.15",),
    ),
    pytest.mark.timeout(150),
]

TRAINING = ["--examples=81", "--shuffle", "--batch_norm", "--validate", "--save_steps=4"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_tasks_have_equal_weights_with_a_sync_period(tmp_path: Path, strategy: str) -> None:
    job = [f"--strategy={strategy}", "--workers=2", PROGRAM, *TRAINING, *directories(tmp_path)]
    job += ["--sync_period=3", "--outer_momentum=0.6"]
    ended = launch(tmp_path, *job, "--epochs=2", deadline=60)
    assert ended.code == 0, ended.output
    first = results(tmp_path)
    # worker:1 stops in the eighth epoch.
    ended = launch(tmp_path, *job, "--epochs=9", "--stop_after=60", deadline=60)
    assert ended.code == 0, ended.output
    assert "resuming after epoch 2 of 9" in ended.output
    found = results(tmp_path)
    for rank in ("worker-0", "worker-1"):
        np.testing.assert_array_equal(found[rank]["weights"], found["worker-0"]["weights"])
        np.testing.assert_array_equal(found[rank]["losses"], found["worker-0"]["losses"])
        # 41 and 40 examples in batches of 4: 11 steps in each task.
        # Up to the next average, the other task may be ahead.
        assert found[rank]["steps"] == found["worker-0"]["steps"] in (7 * 11 + 5, 7 * 11 + 6)
    # With an example that one rank repeats in each epoch, the last loss varies.
    assert min(found["worker-0"]["losses"]) < 0.8 * first["worker-0"]["losses"][0]
    counts = np.sum([task["counts"] for task in found.values()], axis=0)
    # One example is repeated, so that both ranks have the same number of steps.
    assert len(counts) == 6
    counts = counts[:5]
    assert counts.sum() == 5 * 82
    assert set(counts.flatten()) == {1.0, 2.0}
    assert [int(task["evaluated_seen"]) for task in found.values()] == [11, 11]
