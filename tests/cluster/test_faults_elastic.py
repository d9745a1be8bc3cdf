"""Elastic jobs shrink and grow with the hosts from a host discovery script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.namespaces import machines
from tests.support.processes import (
    PROGRAM,
    Ended,
    Processes,
    Tasks,
    checkpoints,
    directories,
    results,
    run_by_hand,
)

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

# With 1001 examples each of 3 workers has the same number of batches, so no example is repeated.
TRAINING = ["--shuffle", "--examples=1001", "--batch_size=2", "--epochs=3", "--save_steps=50"]
# Slow steps, so that the job does not end before it has detected a change.
TRAINING += ["--rest=0.01"]

STARTED = re.compile(r"^tfdist: (\d+) workers? on", re.MULTILINE)


class Hosts:
    """The host discovery script, and the hosts that it lists."""

    def __init__(self, path: Path, *hosts: str) -> None:
        self._file = path / "hosts"
        self.set(*hosts)

    @property
    def flag(self) -> str:
        return f"--host_discovery_script=cat {self._file}"

    def set(self, *hosts: str) -> None:
        # Replace the file atomically, so that the script never prints a partial list.
        temporary = self._file.with_suffix(".new")
        temporary.write_text("".join(f"{host}\n" for host in hosts))
        temporary.replace(self._file)


class Changes:
    """Applies a list of host changes, each after a new checkpoint with the previous hosts."""

    def __init__(self, path: Path, hosts: Hosts, *changes: Sequence[str]) -> None:
        self._path = path
        self._hosts = hosts
        self._changes = list(changes)
        self._starts = 0
        # The checkpoints at the last start; None between a change and the next start.
        self._before: set[str] | None = None

    def __call__(self, _: Processes, logs: Mapping[str, Path]) -> None:
        starts = max(len(STARTED.findall(log.read_text())) for log in logs.values())
        found = set(checkpoints(self._path))
        if starts > self._starts:
            self._starts, self._before = starts, found
        elif self._before is not None and found - self._before and self._changes:
            self._hosts.set(*self._changes.pop(0))
            self._before = None


def elastic(path: Path, hosts: Hosts, strategy: str, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
    command += [hosts.flag, "--max_workers=3", *flags]
    return [*command, PROGRAM, *TRAINING, *directories(path)]


def sizes(ended: Ended) -> list[int]:
    """The number of workers after each start."""
    return [int(size) for size in STARTED.findall(ended.output)]


def test_a_job_shrinks_and_grows(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    changes = Changes(tmp_path, hosts, ["localhost:1"], ["localhost:1", "127.0.0.1:7"])
    job: Tasks = {"tfdist": (elastic(tmp_path, hosts, "multi_worker_mirrored"), {})}
    ended = run_by_hand(tmp_path / "logs", job, deadline=200, watch=changes)["tfdist"]
    assert ended.code == 0, ended.output
    assert sizes(ended) == [2, 1, 3]
    assert ended.output.count("exiting with code 75") == 2
    assert ended.output.count("is repeated from its beginning") == 2
    found = results(tmp_path)
    assert len(found) == 3
    for task in found.values():
        np.testing.assert_array_equal(task["weights"], found["worker-0"]["weights"])
        np.testing.assert_array_equal(task["counts"][-1], 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_each_machine_starts_the_workers_of_its_own_host(tmp_path: Path) -> None:
    with machines(2) as (first, second):
        both = [f"{first.address}:1", f"{second.address}:1"]
        hosts = Hosts(tmp_path, *both)
        changes = Changes(tmp_path, hosts, both[:1], both)
        command = elastic(tmp_path, hosts, "horovod", "--port=2222")
        job: Tasks = {machine.name: ([*machine.enter, *command], {}) for machine in (first, second)}
        ended = run_by_hand(tmp_path / "logs", job, deadline=200, watch=changes)
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    assert sizes(ended[first.name]) == [2, 1, 2]
    assert "waiting for this machine to be listed" in ended[second.name].output
    assert sizes(ended[second.name]) == [2, 2]
    assert set(results(tmp_path)) == {"worker-0", "worker-1"}
