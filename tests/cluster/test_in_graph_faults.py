"""`in_graph`: lost workers, checkpoints under other strategies, and jobs that cannot start."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import OnceSaved, Processes, Tasks, launch, run_by_hand, tasks_of
from tests.support.split_jobs import PROGRAM, assert_close, files, places, train, weights

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

# With batches of unequal sizes, the replicas of multi_worker_mirrored do not equal one process.
EVEN = "--examples=96"
STAGES = ["--stages=2", "--microbatches=2"]
EPOCHS = 30


def sends(number: int) -> Callable[[Processes], None]:
    """A function that sends a signal to worker 1, which serves."""

    def send(processes: Processes) -> None:
        tasks_of(processes["tfdist"].pid)[1].send_signal(number)

    return send


def test_a_lost_worker_is_named_and_a_restart_gives_the_same_weights(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    flags = [*STAGES, f"--epochs={EPOCHS}"]
    train(undisturbed, "--strategy=in_graph", "--workers=2", flags=flags)
    disturbed.mkdir()
    command = [sys.executable, "-m", "tfdist", "run", "--strategy=in_graph", "--workers=2"]
    # A suspended task cannot use the grace period.
    command += ["--max_restarts=1", "--grace_period=1", PROGRAM, *flags, *files(disturbed)]
    command += ["--heartbeat_timeout=5"]
    job: Tasks = {"tfdist": (command, {})}
    watch = OnceSaved(disturbed, 3, sends(signal.SIGSTOP))
    ended = run_by_hand(disturbed, job, deadline=90, watch=watch)["tfdist"]
    assert ended.code == 0, ended.output
    lost = r"worker:1 was lost: nothing at \S+ has answered for 5 s"
    assert re.search(lost, ended.output), ended.output
    assert "restart 1 of 1 of all" in ended.output
    assert "resuming after epoch" in ended.output
    assert_close(weights(disturbed), weights(undisturbed))


def test_a_lost_worker_ends_a_job_without_restarts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist", "run", "--strategy=in_graph", "--workers=2"]
    command += [PROGRAM, *STAGES, f"--epochs={EPOCHS}", *files(tmp_path)]
    job: Tasks = {"tfdist": (command, {})}
    watch = OnceSaved(tmp_path, 3, sends(signal.SIGKILL))
    ended = run_by_hand(tmp_path, job, deadline=60, watch=watch)["tfdist"]
    assert ended.code in (1, 128 + signal.SIGKILL), ended.output
    assert "worker:1 was killed by signal 9 (Killed)" in ended.output
    # The client may be killed before it reports the loss.
    assert ended.code != 1 or "tfdist: error: worker:1 was lost" in ended.output


def test_other_strategies_and_stages_continue_from_a_checkpoint(tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    train(undisturbed, "--strategy=one_device", flags=[EVEN, "--epochs=4"])
    first = tmp_path / "first"
    in_graph = ["--strategy=in_graph", "--workers=4"]
    train(first, *in_graph, flags=[*STAGES, EVEN, "--epochs=2"])
    continued: dict[str, tuple[list[str], list[str]]] = {
        "one_device": (["--strategy=one_device"], []),
        "multi_worker_mirrored": (["--strategy=multi_worker_mirrored", "--workers=2"], []),
        "four_stages": (in_graph, ["--stages=4"]),
    }
    for name, (job, flags) in continued.items():
        path = tmp_path / name
        shutil.copytree(first / "output", path / "output")
        ended = train(path, *job, flags=[*flags, EVEN, "--epochs=4"])
        assert "resuming after epoch 2" in ended.output
        assert_close(weights(path), weights(undisturbed))
    # The variables and slots of the last job, with four stages.
    variables = places("variable", ended.output)
    assert [worker for _, worker in variables] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(places("slot", ended.output)) == sorted(variables)


@pytest.mark.parametrize(
    ("job", "flags", "sentence"),
    [
        (["--workers=3"], ["--stages=2"], r"--stages: received '2 with 3 workers'"),
        (["--workers=1", "--ps=1"], [], r"\bps\b"),
        (["--workers=3"], ["--stages=3", "--model=subclassed"], r"stages 0, 1 with --stages=3"),
        (["--workers=5"], ["--stages=5"], r"of 4 layers with weights"),
    ],
    ids=["divisor", "ps", "given_stages", "layers"],
)
def test_a_job_that_cannot_be_split_is_refused(
    tmp_path: Path, job: list[str], flags: list[str], sentence: str
) -> None:
    ended = launch(
        tmp_path, "--strategy=in_graph", *job, PROGRAM, *flags, *files(tmp_path), deadline=60
    )
    assert ended.code == 2, ended.output
    assert re.search(rf"tfdist: error: .*{sentence}", ended.output), ended.output
    assert "Traceback" not in ended.output
