"""`tfdist exec`: what a script that does not use tfdist is given, and what happens without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(120)]

PLAIN = ROOT / "tests" / "support" / "plain"
NODES = {"SKYPILOT_NODE_IPS": "127.0.0.1\nlocalhost", "SKYPILOT_TASK_ID": "7"}


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(started: ExitStack, *arguments: str | Path, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "exec", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.callback(process.kill)
    return process


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(
        "import json, os, sys\n"
        "names = ['TF_CONFIG', 'SKYPILOT_NODE_RANK']\n"
        "print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))\n"
        "sys.exit(5)\n"
    )
    return path


def run(
    started: ExitStack, *arguments: str | Path, **environ: str
) -> tuple[list[str], dict[str, str | None], str]:
    process = start(started, *arguments, **environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    flags, variables = json.loads(out)
    return flags, variables, err


def test_the_script_gets_tf_config_and_its_exit_code_is_the_commands(
    script: Path, started: ExitStack
) -> None:
    flags, variables, err = run(started, script, "--epochs=3", SKYPILOT_NODE_RANK="1", **NODES)
    assert flags == ["--epochs=3"]
    config = json.loads(variables["TF_CONFIG"] or "")
    assert config["task"] == {"type": "worker", "index": 1}
    hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
    assert hosts == ["127.0.0.1", "localhost"]
    assert variables["SKYPILOT_NODE_RANK"] == "1"
    assert err == "tfdist: worker:1 of 2 worker (SkyPilot)\n"


def test_the_script_gets_flags(script: Path, started: ExitStack) -> None:
    flags, variables, _ = run(
        started, "--cluster_as=flags", "--num_ps=1", script, SKYPILOT_NODE_RANK="0", **NODES
    )
    assert flags[:2] == ["--job_name=ps", "--task_index=0"]
    assert [flag.partition("=")[0] for flag in flags[2:]] == ["--chief_hosts", "--ps_hosts"]
    assert variables["TF_CONFIG"] is None


def test_without_an_engine_the_script_is_alone(script: Path, started: ExitStack) -> None:
    flags, variables, err = run(started, script)
    assert (flags, variables["TF_CONFIG"]) == ([], None)
    assert err == "tfdist: worker:0 of this process alone (default)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_ps=1", "SCRIPT"], "--num_ps: received 1"),
        (["no.py"], "SCRIPT: received 'no.py'"),
        (["--strategy=mirorred", "SCRIPT"], "--strategy: received 'mirorred'"),
    ],
)
def test_a_mistake_is_a_sentence(
    arguments: Sequence[str], message: str, script: Path, started: ExitStack
) -> None:
    process = start(started, *(script if word == "SCRIPT" else word for word in arguments))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith(f"tfdist: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.horovod
def test_ranks_of_horovod_join_and_leave_no_process(started: ExitStack) -> None:
    with hold_ports(2) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        flags = ["--strategy=horovod", f"--worker_hosts={hosts}", "--job_name=worker"]
        ranks = [
            start(started, *flags, f"--task_index={rank}", PLAIN / "horovod_loop.py")
            for rank in (1, 0)
        ]
        for rank, process in zip((1, 0), ranks, strict=True):
            out, err = process.communicate(timeout=100)
            assert process.returncode == 0, err
            assert f"rank {rank} of 2 has trained to a loss of 0.00" in out
        # Rank 0 has left a child that serves the rendezvous, with the arguments of the command.
        deadline = time.monotonic() + 30
        while any(hosts in " ".join(each.info["cmdline"] or []) for each in running()):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def running() -> Iterator[psutil.Process]:
    return psutil.process_iter(["cmdline"])


@pytest.mark.horovod
def test_a_rank_whose_others_do_not_start_gives_up(started: ExitStack) -> None:
    with hold_ports(2) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        flags = ["--strategy=horovod", f"--worker_hosts={hosts}", "--job_name=worker"]
        flags += ["--startup_timeout=2"]
        for rank in (0, 1):
            process = start(started, *flags, f"--task_index={rank}", PLAIN / "horovod_loop.py")
            _, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert f"waited 2 s (--startup_timeout) for worker:{1 - rank}" in err
