"""Damaged and interrupted checkpoints, and failed saves: no intact checkpoint is lost."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.support.processes import (
    PROGRAM,
    Processes,
    Tasks,
    directories,
    launch,
    results,
    run_by_hand,
)
from tests.unit.storage.test_files import DAMAGES, STATES
from tfdist.storage import files as checkpoint_files

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

ESTIMATOR_PROGRAM = str(Path(__file__).parents[1] / "support" / "estimator_program.py")
SAVER_PROGRAM = str(Path(__file__).parents[1] / "support" / "saver_program.py")
mounts = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


@contextmanager
def mounted(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mounts a small disk at `path`; yields a function that remounts it with other options."""

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)

    path.mkdir(parents=True)
    mount(f"size={size}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def one_process(program: str, path: Path, *flags: str, kilobytes: int | None = None) -> Tasks:
    """A job that runs the program in one process; `kilobytes` limits the size of its files."""
    command = [sys.executable, program, "--strategy=one_device", *directories(path), *flags]
    if kilobytes is not None:
        # The limit must not apply to the file with the program's output.
        limited = f'set -o pipefail; (ulimit -f {kilobytes}; exec "$@") 2>&1 | cat'
        command = ["bash", "-c", limited, "bash", *command]
    return {path.name: (command, {})}


def newest(directory: Path) -> str:
    """The name of the newest checkpoint; checks that all checkpoints in the state are intact."""
    paths = checkpoint_files.saved(directory)
    assert paths, f"the state in {directory} should name a checkpoint"
    assert [checkpoint_files.damage(path) for path in paths] == [None] * len(paths)
    return Path(paths[-1]).name


def check_no_leftovers(output: Path) -> None:
    names = [path.name for path in output.rglob("*")]
    assert not [name for name in names if "_temp" in name or ".tmp" in name or name[0] == "."]


def weights(output: Path) -> dict[str, np.ndarray]:
    """The variables in the newest checkpoint of an Estimator, by name."""
    path = str(output / newest(output))
    return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def damaged_copies(intact: Path, tmp_path: Path, checkpoints: str, name: str) -> dict[str, Path]:
    """Copies a job's directories once for each kind of damage to the checkpoint or the state."""
    paths = {}
    for kind in ("truncated_data", "flipped_bit_in_data", "missing_data", "missing_index", *STATES):
        if kind == "names_another":
            continue
        paths[kind] = tmp_path / kind
        shutil.copytree(intact, paths[kind])
        directory = paths[kind] / "output" / checkpoints
        if kind in STATES:
            STATES[kind](directory / "checkpoint")
        else:
            DAMAGES[kind][0](directory / name)
    return paths


def test_keras_resumes_from_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    intact = tmp_path / "intact"
    flags = ["--shuffle", "--epochs=4"]
    (ended,) = run_by_hand(
        tmp_path / "log", one_process(PROGRAM, intact, *flags), deadline=60
    ).values()
    assert ended.code == 0, ended.output
    last = newest(intact / "output" / "checkpoints")
    (intact / "output" / "done.json").unlink()
    expected = results(intact)["worker-0"]["weights"]

    paths = damaged_copies(intact, tmp_path, "checkpoints", last)
    tasks = {
        name: task
        for path in paths.values()
        for name, task in one_process(PROGRAM, path, *flags).items()
    }
    for kind, ended in run_by_hand(tmp_path / "logs", tasks, deadline=90).items():
        assert ended.code == 0, ended.output
        directory = paths[kind] / "output" / "checkpoints"
        if kind in STATES:
            assert f"{directory / 'checkpoint'} was missing or damaged" in ended.output
            assert "training is complete after 4 epochs" in ended.output
        else:
            assert ended.output.count("is skipped") == 1
            assert f"{directory / last} " in ended.output
            assert "resuming after epoch 3 of 4" in ended.output
        assert newest(directory) == last
        np.testing.assert_array_equal(results(paths[kind])["worker-0"]["weights"], expected)


def test_all_tasks_resume_from_the_same_checkpoint_or_fail(tmp_path: Path) -> None:
    job = ["--strategy=multi_worker_mirrored", "--workers=2", PROGRAM, *directories(tmp_path)]
    ended = launch(tmp_path, *job, "--epochs=3", deadline=60)
    assert ended.code == 0, ended.output
    checkpoints = tmp_path / "output" / "checkpoints"
    last = newest(checkpoints)
    DAMAGES["flipped_bit_in_data"][0](checkpoints / last)
    STATES["truncated"](checkpoints / "checkpoint")

    ended = launch(tmp_path, *job, "--epochs=4", deadline=60)
    assert ended.code == 0, ended.output
    assert "resuming after epoch 2 of 4" in ended.output
    assert ended.output.count("is skipped") == 1, "only the chief should log it"
    one, other = results(tmp_path).values()
    np.testing.assert_array_equal(one["weights"], other["weights"])

    for path in checkpoint_files.saved(checkpoints):
        DAMAGES["truncated_data"][0](Path(path))
    ended = launch(tmp_path, *job, "--epochs=5", deadline=60)
    assert ended.code == 1
    assert f"{checkpoints} has no intact checkpoint" in ended.output


def test_an_estimator_resumes_from_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    intact = tmp_path / "intact"
    # One checkpoint per epoch, so the restarted input continues with the same examples.
    flags = ["--save_steps=12", "--max_steps=24"]
    tasks = one_process(ESTIMATOR_PROGRAM, intact, *flags)
    (ended,) = run_by_hand(tmp_path / "log", tasks, deadline=60).values()
    assert ended.code == 0, ended.output
    expected = weights(intact / "output")

    paths = damaged_copies(intact, tmp_path, "", "model.ckpt-24")
    tasks = {
        name: task
        for path in paths.values()
        for name, task in one_process(ESTIMATOR_PROGRAM, path, *flags).items()
    }
    for kind, ended in run_by_hand(tmp_path / "logs", tasks, deadline=90).items():
        assert ended.code == 0, ended.output
        output = paths[kind] / "output"
        if kind in STATES:
            assert f"{output / 'checkpoint'} was missing or damaged" in ended.output
            assert "training is complete, at step 24" in ended.output
        else:
            assert ended.output.count("is skipped") == 1
            assert f"{output / 'model.ckpt-24'} " in ended.output
            assert "resuming from step 12" in ended.output
        assert newest(output) == "model.ckpt-24"
        for name, value in weights(output).items():
            np.testing.assert_array_equal(value, expected[name])


def test_no_estimator_task_treats_a_damaged_checkpoint_as_the_end(tmp_path: Path) -> None:
    """In a synchronous job, the chief would wait forever for a worker that has already exited."""
    tasks = ["--strategy=parameter_server", "--ps=1", "--workers=1", "--chief", "--evaluator"]
    flags = ["--sync", "--save_steps=12", "--max_steps=24", *directories(tmp_path)]
    job = [*tasks, ESTIMATOR_PROGRAM, *flags]
    output = tmp_path / "output"
    ended = launch(tmp_path, *job, deadline=90)
    assert ended.code == 0, ended.output
    DAMAGES["flipped_bit_in_data"][0](output / "model.ckpt-24")

    ended = launch(tmp_path, *job, deadline=90)

    assert ended.code == 0, ended.output
    assert "resuming from step 12" in ended.output
    assert "at 24" in ended.output, "the evaluator should wait for the intact one"
    assert newest(output) == "model.ckpt-24"


# The directory of a checkpoint's parts, or a file that is written.
_UNFINISHED = re.compile(r"_temp$|\.tempstate\d+$")


def test_a_kill_loses_only_the_interrupted_save(tmp_path: Path) -> None:
    kills = 20
    command = [sys.executable, SAVER_PROGRAM, str(tmp_path / "checkpoints"), str(kills)]
    (ended,) = run_by_hand(tmp_path, {"saver": (command, {})}, deadline=90).values()
    assert ended.code == 0, ended.output

    found = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert len(found) == kills
    for round_ in found:
        # The process may have been killed between a save and its report.
        assert round_["before"] <= round_["began"] <= round_["before"] + 1, round_
        data = [name for name in round_["left"] if ".data-" in name]
        unfinished = [name for name in round_["left"] if _UNFINISHED.search(name)]
        assert len(set(data) - set(unfinished)) <= 5, (
            "older and interrupted saves should be removed"
        )
        assert len(unfinished) <= 2
    assert any(_UNFINISHED.search(name) for round_ in found for name in round_["left"]), (
        "a save should have been interrupted"
    )


LARGE = "--units=20000"  # 1 MB per checkpoint
LARGE_ESTIMATOR = "--examples=200000"  # 800 kB per checkpoint


@mounts
def test_a_full_disk_stops_all_tasks_and_loses_no_checkpoint(tmp_path: Path) -> None:
    with mounted(tmp_path / "output", "2500k") as remount:
        job = ["--strategy=multi_worker_mirrored", "--workers=2", PROGRAM, LARGE]
        job += ["--epochs=5", *directories(tmp_path)]
        checkpoints = tmp_path / "output" / "checkpoints"

        ended = launch(tmp_path, *job, deadline=60)

        assert ended.code == 1, ended.output
        assert f"{checkpoints}/ckpt-" in ended.output
        assert "could not be written: No space left on device. Make room on its disk" in (
            ended.output
        )
        assert len(checkpoint_files.saved(checkpoints)) == 2
        newest(checkpoints)
        check_no_leftovers(tmp_path / "output")

        remount("size=20m")
        ended = launch(tmp_path, *job, deadline=60)
        assert ended.code == 0, ended.output
        assert "resuming after epoch 2 of 5" in ended.output


def test_a_file_size_limit_stops_a_keras_training(tmp_path: Path) -> None:
    """TensorFlow raises OutOfRangeError, which Keras interprets as the end of the data."""
    path = tmp_path / "job"
    first = one_process(PROGRAM, path, "--epochs=2", LARGE)
    assert run_by_hand(tmp_path, first, deadline=60)["job"].code == 0
    checkpoints = path / "output" / "checkpoints"
    before = newest(checkpoints)

    limited = one_process(PROGRAM, path, "--epochs=4", LARGE, kilobytes=500)
    ended = run_by_hand(tmp_path, limited, deadline=60)["job"]

    assert ended.code == 1, ended.output
    assert "could not be written: File too large. Raise the limit" in ended.output
    assert newest(checkpoints) == before
    assert not (path / "output" / "done.json").exists()
    check_no_leftovers(path / "output")


def test_a_file_size_limit_stops_an_estimator(tmp_path: Path) -> None:
    """Otherwise its session would stop as if the input had ended, and the job would exit with 0."""
    output = tmp_path / "output"
    limited: list[int] = []

    def limit(processes: Processes, _: Mapping[str, Path]) -> None:
        if (output / "model.ckpt-10.index").exists() and not limited:
            for task in psutil.Process(processes["tfdist"].pid).children(recursive=True):
                # All other files are smaller.
                task.rlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
                limited.append(task.pid)

    command = [
        sys.executable,
        "-m",
        "tfdist",
        "run",
        ESTIMATOR_PROGRAM,
        LARGE_ESTIMATOR,
    ]
    command += ["--step_seconds=0.05", "--max_steps=1000", *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=60, watch=limit)["tfdist"]

    assert ended.code == 1, ended.output
    assert f"{output} could not be written: File too large. Raise the limit" in ended.output
    assert newest(output).startswith("model.ckpt-")
    assert not (output / "done.json").exists()


@mounts
@pytest.mark.parametrize("program", [PROGRAM, ESTIMATOR_PROGRAM], ids=["keras", "estimator"])
def test_an_unwritable_directory_is_rejected_before_the_first_step(
    program: str, tmp_path: Path
) -> None:
    with mounted(tmp_path / "job" / "output", "1m") as remount:
        remount("ro")
        tasks = one_process(program, tmp_path / "job")
        (ended,) = run_by_hand(tmp_path, tasks, deadline=60).values()

    assert ended.code in (1, 2), ended.output
    assert f"output_dir: received '{tmp_path / 'job' / 'output'}" in ended.output
    assert "Read-only file system" in ended.output
    assert "loss" not in ended.output, "nothing should be trained"


@mounts
def test_a_full_disk_stops_an_estimator_and_loses_no_checkpoint(tmp_path: Path) -> None:
    output = tmp_path / "job" / "output"
    flags = [LARGE_ESTIMATOR, "--max_steps=200"]
    with mounted(output, "3m") as remount:
        tasks = one_process(ESTIMATOR_PROGRAM, tmp_path / "job", *flags)
        ended = run_by_hand(tmp_path, tasks, deadline=60)["job"]

        assert ended.code == 1, ended.output
        assert f"{output} could not be written: No space left on device" in ended.output
        before = checkpoint_files.number(newest(output))
        assert not (output / "done.json").exists()

        remount("size=20m")
        ended = run_by_hand(tmp_path, tasks, deadline=60)["job"]
        assert ended.code == 0, ended.output
        assert f"resuming from step {before}" in ended.output
        check_no_leftovers(output)
