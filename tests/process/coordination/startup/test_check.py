"""The command `tfdist check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.startup import W0, W1, W2
from tfdist.cluster import Cluster, Task
from tfdist.tools.commands import cli

ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


def check(cluster: Cluster, task: Task, *more: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tfdist", "check", *cluster.flags(task), *more],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_says_that_all_tasks_reach_each_other(three: Cluster) -> None:
    processes = [check(three, task) for task in three.tasks()]
    for process in processes:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output
        assert output.startswith("tfdist: all 3 tasks reach each other (")


def test_the_command_names_the_missing_task(three: Cluster) -> None:
    processes = [check(three, task, "--startup-timeout=3") for task in (W0, W1)]
    for process in processes:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 1, output
        assert "tfdist: error: worker:2 has not started: nothing listens at " in output
        assert f"worker:0 and worker:1 → worker:2 {three.address(W2)} refused" in output


def test_tasks_with_different_tokens_belong_to_different_jobs(three: Cluster) -> None:
    processes = [
        check(three, task, "--startup_timeout=3", TFDIST_JOB_TOKEN=token)
        for task, token in ((W0, "a"), (W1, "b"))
    ]
    outputs = [process.communicate(timeout=50)[0] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], outputs
    assert "another job answers" in "".join(outputs)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--worker_hosts=localhost:7,127.0.0.1:7"], "accepted: an address that no other task has"),
        (["--worker_hosts=localhost:1"], "--task_index"),
        (["--worker_hosts=localhost:7,localhost:8", "--strategy=mirrored"], "--strategy"),
        (["--worker_hosts=localhost:7,localhost:8", "--startup_timeout=0"], "startup_timeout"),
        (["--worker_hosts=localhost"], "--worker_hosts[0]"),
    ],
)
def test_the_command_rejects_invalid_arguments(
    arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    index = "1" if answer == "--task_index" else "0"
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--job_name=worker", f"--task_index={index}", *arguments])
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("job_name", ["evaluator", None])
def test_a_task_without_peers_has_nothing_to_check(
    job_name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    hosts = ["--job_name=evaluator", "--task_index=0", "--worker_hosts=localhost:7,localhost:8"]
    assert cli.main(["check", *(hosts if job_name else [])]) == 0
    assert "has no other task to reach" in capsys.readouterr().out


def test_the_command_does_not_import_tensorflow() -> None:
    code = (
        "import sys, tfdist.coordination.startup, tfdist.tools.commands.cli\n"
        "print(sorted({'numpy', 'tensorflow'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
