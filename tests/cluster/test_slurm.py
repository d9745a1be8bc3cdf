"""Jobs on a real Slurm of three nodes: the script finds its place without a flag."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support import slurm
from tests.support.pages import example
from tests.support.processes import PROGRAM, ROOT, checkpoints, directories, results
from tests.support.slurm import Slurm
from tests.support.tunnels import needs_tunnels
from tfdist.data import cifar10
from tfdist.tools.commands import cli

pytestmark = [
    pytest.mark.stacks("2.15"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing())),
    pytest.mark.xdist_group("Slurm"),
]

EXAMPLE = str(ROOT / "examples" / "cifar10_main.py")
DOCUMENTED = example("clusters/one_machine.md", "cifar10_main.py")
DIGITS = [
    *DOCUMENTED[DOCUMENTED.index(EXAMPLE) + 1 :],
    *("--num_layers=8", "--seed=1", "--batch_norm_decay=0.9", "--nouse_distortion_for_training"),
]
# The components of a step, and the flags of the script. The other strategies do not span hosts:
# tests/cluster/test_digits.py. The job that is queued again is one of multi_worker_mirrored.
JOBS = {
    "horovod": ([["--nodes=2", "--ntasks=2"]], []),
    # A ps and the evaluator, then the chief and the workers.
    "parameter_server": (
        [["--nodes=1", "--ntasks=2", "--nodelist=n10"], ["--nodes=2", "--ntasks=3"]],
        ["--num_ps=1", "--evaluator"],
    ),
}
# Prints what this task finds.
FIND = """
import os, sys
sys.path.insert(0, {root!r})
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.cluster.task_counts import TaskCounts

config = discover(ClusterFlags(), os.environ, TaskCounts(ps={num_ps}))
place = config.cluster.address(config.task).partition(":")[0] if config.cluster else "alone"
print(os.environ["SLURMD_NODENAME"], place, config.task, config.cluster.jobs(), flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def run(cluster: Slurm, *words: str, deadline: float) -> str:
    ended = subprocess.run(
        cluster.command("env", f"PYTHONPATH={ROOT}", "TF_CPP_MIN_LOG_LEVEL=3", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.parametrize("strategy", JOBS)
def test_the_example_learns_digits(strategy: str, cluster: Slurm, tmp_path: Path) -> None:
    components, flags = JOBS[strategy]
    cifar10.write(tmp_path / "digits", "digits")
    asynchronous = strategy == "parameter_server"
    replicas = 1 if asynchronous else 2
    # An all-reduce gives the weights of one process, which learns all (test_digits.py).
    epochs, decays, least = (6, "4,5", 0.5) if asynchronous else (2, "2", 0.5)
    script = [sys.executable, EXAMPLE, f"--strategy={strategy}", *DIGITS, *flags]
    script += [f"--data_dir={tmp_path / 'digits'}", f"--output_dir={tmp_path / 'output'}"]
    script += [f"--train_epochs={epochs}", f"--decay_epochs={decays}"]
    script += [f"--train_batch_size={32 // replicas}", f"--learning_rate={0.1 / replicas}"]
    step = ["srun", "--label", "--kill-on-bad-exit"]
    for component in components:
        step += [*component, *script, ":"]
    printed = run(cluster, *step[:-1], deadline=300)
    (accuracy,) = re.findall(r"test accuracy (\S+)", printed)
    assert float(accuracy) >= least, printed
    print(f"Slurm, {strategy}: test accuracy {accuracy}")
    assert "(Slurm step" in printed
    if asynchronous:
        lines = (tmp_path / "output" / "eval_metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["epoch"] == epochs


@pytest.mark.parametrize(
    "options", [[], pytest.param(["--tls"], marks=needs_tunnels)], ids=["plain", "tls"]
)
def test_a_script_that_does_not_use_tfdist(options: list[str], cluster: Slurm) -> None:
    plain = str(ROOT / "tests" / "support" / "plain" / "multi_worker_mirrored.py")
    command = [sys.executable, "-m", "tfdist", "exec", *options, plain]
    token = "TFDIST_JOB_TOKEN=token"
    printed = run(
        cluster, token, "srun", "--label", "--nodes=2", "--ntasks=2", *command, deadline=120
    )
    assert printed.count("2 replicas have trained to a loss of 0.00") == 2, printed


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_every_task_finds_its_place(distribution: str, cluster: Slurm) -> None:
    step = ["srun", "--nodes=3", "--ntasks=5", f"--distribution={distribution}"]
    found = FIND.format(root=str(ROOT), num_ps=0)
    printed = run(cluster, *step, sys.executable, "-c", found, deadline=60)
    places = [line.split(" ", 3) for line in printed.splitlines() if " worker:" in line]
    assert sorted(task for _, _, task, _ in places) == [f"worker:{n}" for n in range(5)]
    assert all(node == place for node, place, _, _ in places), printed
    assert len({jobs for _, _, _, jobs in places}) == 1


def test_components_and_parts_of_an_allocation(cluster: Slurm, tmp_path: Path) -> None:
    found, script = tmp_path / "found.py", tmp_path / "job.sh"
    found.write_text(FIND.format(root=str(ROOT), num_ps="int(os.environ.get('NUM_PS', '0'))"))
    command = f"{sys.executable} {found}"
    script.write_text(
        "#!/bin/sh\n"
        f"#SBATCH --nodes=1 --ntasks=2 --nodelist=n10 --output={tmp_path}/printed\n"
        "#SBATCH hetjob\n"
        "#SBATCH --nodes=2 --ntasks=2\n"
        f"NUM_PS=2 srun --het-group=0,1 {command}\n"
        f"echo one; srun --het-group=1 {command}\n"
        f"echo batch; {command}\n"
    )
    run(cluster, "sbatch", "--wait", str(script), deadline=120)
    both, one_and_batch = (tmp_path / "printed").read_text().split("one\n")
    one, batch = one_and_batch.split("batch\n")
    tasks = {line.split()[2]: line.split()[0] for line in both.splitlines()}
    assert tasks == {"ps:0": "n10", "ps:1": "n10", "chief:0": "n1", "worker:0": "n2"}
    assert {line.split()[2]: line.split()[1] for line in one.splitlines()} == {
        "worker:0": "n1",
        "worker:1": "n2",
    }
    assert batch.split()[1:3] == ["alone", "worker:0"]


def test_a_job_whose_task_is_killed_is_requeued_and_finishes(
    cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch script is what `tfdist render slurm` prints."""
    flags = ["--strategy=multi_worker_mirrored", "--workers=2", "--name=killed"]
    training = [*directories(tmp_path), "--epochs=6", "--examples=41", "--rest=0.3"]
    assert cli.main(["render", "slurm", *flags, PROGRAM, *training]) == 0
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = ["env", f"PATH={path}", f"PYTHONPATH={ROOT}"]
    script = tmp_path / "job.sh"
    script.write_text(capsys.readouterr().out)
    submit = ["sbatch", "--parsable", f"--chdir={tmp_path}", str(script)]
    number = cluster.ask(*environ, *submit).strip()

    deadline = time.monotonic() + 300
    killed = False
    while (state := state_of(cluster, number)) not in ("COMPLETED", "FAILED"):
        assert time.monotonic() < deadline, state
        if not killed and checkpoints(tmp_path):
            kill_rank(1, number)
            killed = True
        time.sleep(0.5)
    log = (tmp_path / f"killed-{number}.log").read_text()
    assert state == "COMPLETED", log
    assert "tfdist: the job has ended with code" in log
    assert "resuming after epoch" in log
    first, second = results(tmp_path).values()
    np.testing.assert_array_equal(first["weights"], second["weights"])


def state_of(cluster: Slurm, number: str) -> str:
    shown = cluster.ask("scontrol", "show", "job", number)
    return re.findall(r"JobState=(\w+)", shown)[0]


def kill_rank(rank: int, number: str) -> None:
    """Kills the Python process of a task; the shell of the step is its parent."""
    own = {"SLURM_PROCID": str(rank), "SLURM_JOB_ID": number}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "python" in process.cmdline()[:1] and own.items() <= process.environ().items():
                found.append(process)
    # Children of the task have its environment, also when their own parents have ended.
    min(found, key=lambda process: process.create_time()).kill()
