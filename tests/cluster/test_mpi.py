"""Jobs of a real mpirun: the script finds its place without a flag."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ssh
from tests.support.namespaces import Machine, machines
from tests.support.pages import readme_script
from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(200)]

MPIRUN = Path(sys.executable).with_name("mpirun")
# Prints the addresses of all ranks.
EXCHANGE = (
    "from tfdist.cluster.exchange import exchange\n"
    "met = exchange()\n"
    "print(met.job, *met.hosts, flush=True)\n"
)


def mpirun(*words: str, directory: Path, machine: Machine | None = None) -> str:
    # Open MPI refuses root unless it is told not to.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    enter = machine.enter_as_host if machine else []
    ended = subprocess.run(
        [*enter, str(MPIRUN), *root, "--oversubscribe", "--bind-to", "none", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_three_ranks_train_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(readme_script())
    script = [sys.executable, "train.py", "--output_dir=run1"]
    printed = mpirun("-np", "3", *script, directory=tmp_path)
    for rank in range(3):
        assert f"worker:{rank} of 3 worker (Open MPI, rank {rank})" in printed
    losses = re.findall(r"^loss (0\.\d+), accuracy 0\.9", printed, re.MULTILINE)
    assert len(losses) == 3
    assert len({*losses}) == 1
    assert (tmp_path / "run1" / "done.json").exists()


def test_ranks_exchange_their_addresses(tmp_path: Path) -> None:
    printed = mpirun("-np", "3", sys.executable, "-c", EXCHANGE, directory=tmp_path)
    (line,) = {*printed.splitlines()}
    assert line.split()[1:] == ["127.0.0.1"] * 3


@pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing()))
def test_ranks_on_three_hosts_exchange_their_addresses(tmp_path: Path) -> None:
    """Over real ssh, each host a network namespace."""
    with machines(3) as hosts, ssh.servers(tmp_path, hosts) as (_, *arguments):
        names = [host.address for host in hosts]
        flags = ["--host", ",".join(f"{name}:1" for name in names)]
        # The wheel of Open MPI is not on the hosts' PATH.
        flags += ["--prtemca", "plm_ssh_args", " ".join(arguments), "--prefix", sys.prefix]
        program = ["-x", "PYTHONPATH", sys.executable, "-c", EXCHANGE]
        printed = mpirun("-np", "3", *flags, *program, directory=tmp_path, machine=hosts[0])
    # Open MPI may print a warning of its own.
    (line,) = {line for line in printed.splitlines() if names[0] in line}
    assert line.split()[1:] == names
