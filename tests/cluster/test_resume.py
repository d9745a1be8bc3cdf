"""A failed job resumes where it stopped, and a complete one does not train again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import (
    PROGRAM,
    ROOT,
    directories,
    epochs_logged,
    launch,
    results,
)

pytestmark = [
    pytest.mark.stacks(
        "2.15",
        "newest",
        horovod=("newest",),
    ),
    pytest.mark.timeout(240),
]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(
            "--strategy=parameter_server --ps=2 --workers=2", marks=pytest.mark.stacks("2.15")
        ),
        "--strategy=horovod --workers=2",
    ],
)
def test_a_failed_job_resumes_and_a_complete_one_does_not_train(
    tmp_path: Path, launcher: str
) -> None:
    command = [*launcher.split(), PROGRAM, *directories(tmp_path)]
    if "parameter_server" in launcher and not keras_is_3():
        command += ["--variable_partitions=2", "--units=40000"]
    failed = launch(tmp_path, *command, "--epochs=4", "--fail_in_epoch=2", deadline=90)
    assert failed.code == 1
    assert "as requested" in failed.output
    assert epochs_logged(tmp_path / "output") == [1, 2]

    resumed = launch(tmp_path, *command, "--epochs=4", deadline=90)
    assert resumed.code == 0, resumed.output
    assert "resuming after epoch 2 of 4" in resumed.output
    assert epochs_logged(tmp_path / "output") == [1, 2, 3, 4]
    before = results(tmp_path)
    updates = 4 * 40 // 4
    replicas = 2 if "horovod" in launcher else 1
    assert {int(task["steps"]) for task in before.values()} == {updates // replicas}

    again = launch(tmp_path, *command, "--epochs=4", deadline=90)
    assert again.code == 0, again.output
    assert "training is complete after 4 epochs" in again.output
    after = results(tmp_path)
    for name, task in after.items():
        assert task["losses"].size == 0, "nothing should be trained again"
        np.testing.assert_array_equal(task["weights"], before[name]["weights"])
        assert task["evaluated_loss"] == pytest.approx(float(before[name]["evaluated_loss"]))


@pytest.mark.stacks("newest")
def test_a_second_fit_waits_for_the_checkpoint_of_the_chief(tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "support" / "fits_program.py")
    output = tmp_path / "output"
    command = ["--strategy=multi_worker_mirrored", "--workers=2", program, f"--output_dir={output}"]
    ended = launch(tmp_path, *command, deadline=90)
    assert ended.code == 0, ended.output
    assert "resuming after epoch 2 of 3 and 160 steps" in ended.output
    assert epochs_logged(output) == [1, 2, 3]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], marks=pytest.mark.stacks("newest")),
        pytest.param(["--sync"], marks=pytest.mark.stacks("2.15")),
    ],
)
def test_a_job_with_a_number_of_steps_resumes_within_a_later_epoch(
    tmp_path: Path, flags: list[str]
) -> None:
    """Twice, because the second restart also counts the steps before the first one."""
    command = ["--workers=2", "--ps=1", "--chief", str(ROOT / "tests/support/endless_program.py")]
    command += [f"--output_dir={tmp_path / 'output'}", *flags]
    for updates in (130, 170):
        died = launch(tmp_path, *command, f"--die={updates}", deadline=90)
        assert died.code == 9, died.output
    resumed = launch(tmp_path, *command, deadline=90)
    assert resumed.code == 0, resumed.output
    found = re.search(r"resuming after step (\d+) of epoch 2 of 3 and (\d+) steps", resumed.output)
    assert found and int(found[2]) - int(found[1]) == 100, resumed.output
    assert 170 <= int(found[2]) < 200
    lines = (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [100, 200, 300]
