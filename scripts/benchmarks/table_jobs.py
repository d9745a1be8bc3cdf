"""Runs a job of the recommender on one machine, for measure_table.py.

result = run(TableJob(users=1_000_000), directory)
result.bytes_per_step

The tasks run in a network namespace of their own, whose loopback interface counts only their bytes.
It needs root.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scripts.benchmarks import marks
from scripts.benchmarks.jobs import ROOT
from tests.support import in_machine, processes
from tests.support.namespaces import Machine, machines
from tfdist.cluster import Cluster

# The limit of TensorFlow's CPU allocator, with oneDNN. A limit of the system (RLIMIT_DATA) does not
# serve: this allocator takes all that it gets, and the next allocation of C++ aborts the process.
_TENSOR_BYTES = "TF_MKL_ALLOC_MAX_BYTES"
_FIRST_PORT = 2222
_POLL_SECONDS = 0.1
_SHOWN = 3000  # characters of the log of a failed job


@dataclass(frozen=True)
class TableJob:
    """A job of the recommender with a chief.

    Attributes:
      users: the rows of the large table.
      width: the columns of the tables.
      batch_size: interactions of a worker's step.
      workers, ps: the numbers of these tasks.
      partitions: `--variable_partitions`.
      ps_megabytes: the limit on the memory of a ps for tensors; 0 for none.
      steps: steps per epoch, of all workers together.
      epochs: epochs; the first is the warm-up.
      deadline: seconds for the job.
    """

    users: int
    width: int = 64
    batch_size: int = 256
    workers: int = 1
    ps: int = 2
    partitions: int = 8
    ps_megabytes: int = 0
    steps: int = 100
    epochs: int = 3
    deadline: float = 300.0

    @property
    def table_megabytes(self) -> float:
        return 4e-6 * self.users * self.width


@dataclass(frozen=True)
class TableResult:
    """What a job did.

    Attributes:
      failure: the end of the chief's log if the job failed; else empty.
      bytes_per_step: the bytes over the loopback interface per step of a worker, median over the
        epochs but the first; without checkpoints.
      steps_per_second: the median over the same epochs.
      peak_megabytes: the peak of the resident memory, by task.
    """

    failure: str
    bytes_per_step: float
    steps_per_second: float
    peak_megabytes: dict[str, float]


Process = subprocess.Popen[str] | processes.Copy


def run(job: TableJob, directory: Path, *, copies: bool = False) -> TableResult:
    """Runs a job to its end.

    Args:
      job: the job.
      directory: an empty directory for the output and the logs.
      copies: whether the tasks are copies of a process that has TensorFlow imported, which start
        faster; their peak memory includes what they share.

    Raises:
      TimeoutError: the job took too long; contains the end of the chief's log.
    """
    addresses = iter(f"127.0.0.1:{_FIRST_PORT + n}" for n in range(1 + job.workers + job.ps))
    cluster = Cluster(
        chief=(next(addresses),),
        worker=tuple(next(addresses) for _ in range(job.workers)),
        ps=tuple(next(addresses) for _ in range(job.ps)),
    )
    recorded = directory / "marks.json"
    peaks: dict[str, float] = {}
    started: dict[str, Process] = {}
    with machines(1) as (machine,):
        try:
            for task in cluster.tasks():
                command = [str(ROOT / "scripts" / "benchmarks" / "recommender_training.py")]
                command += [f"--users={job.users}", f"--width={job.width}", "--items=10000"]
                command += [f"--batch_size={job.batch_size}", f"--steps={job.steps}"]
                command += [f"--epochs={job.epochs}", f"--output_dir={directory / 'output'}"]
                if job.partitions > 1:
                    command += [f"--variable_partitions={job.partitions}"]
                environ = {"TF_CONFIG": cluster.tf_config(task), marks.VARIABLE: str(recorded)}
                if task.type == "ps" and job.ps_megabytes:
                    environ[_TENSOR_BYTES] = str(1_000_000 * job.ps_megabytes)
                with _log(directory, str(task)).open("w") as output:
                    started[str(task)] = _start(machine, command, environ, output, copies)
            _wait(started, peaks, job.deadline, directory)
        finally:
            for process in started.values():
                process.kill()
                process.wait()
    failure = ""
    if started["chief:0"].returncode:
        failure = _log(directory, "chief:0").read_text()[-_SHOWN:]
    epochs = json.loads(recorded.read_text())["epochs"][1:] if recorded.exists() else []
    if not epochs:
        return TableResult(failure, float("nan"), float("nan"), peaks)
    return TableResult(
        failure,
        statistics.median(epoch["bytes"] / job.steps for epoch in epochs),
        statistics.median(job.steps / (epoch["end"] - epoch["begin"]) for epoch in epochs),
        peaks,
    )


def _start(
    machine: Machine,
    command: Sequence[str],
    environ: Mapping[str, str],
    output: IO[str],
    copies: bool,
) -> Process:
    """Starts a Python script on a machine."""
    if copies:
        inside = [sys.executable, in_machine.__file__, machine.name]
        return processes.copy([*inside, *command], environ, output)
    return processes.start([*machine.enter, sys.executable, *command], environ, output)


def _wait(
    started: dict[str, Process],
    peaks: dict[str, float],
    deadline: float,
    directory: Path,
) -> None:
    """Waits for the chief, and records the peak memory of all tasks."""
    until = time.monotonic() + deadline
    while started["chief:0"].poll() is None:
        if time.monotonic() > until:
            log = _log(directory, "chief:0").read_text()[-_SHOWN:]
            raise TimeoutError(f"the job takes more than {deadline:g} s:\n{log}")
        for name, process in started.items():
            with contextlib.suppress(FileNotFoundError):  # A copy that has exited has none.
                status = Path(f"/proc/{process.pid}/status").read_text()
                for kibibytes in re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE):
                    peaks[name] = 1.024e-3 * int(kibibytes)
        time.sleep(_POLL_SECONDS)


def _log(directory: Path, task: str) -> Path:
    return directory / f"{task.replace(':', '-')}.log"
