#!/usr/bin/env python
"""Trains with many workers of one machine, kills one of them, and counts what the chief needs.

    scripts/benchmarks/measure_many_workers.py
    scripts/benchmarks/measure_many_workers.py --workers 4 8 16 32 --steps=50

Starts `tfdist run` with a chief, one ps and the workers, and trains the model of `training.mlp`. In
the second epoch a worker receives SIGKILL, and the launcher restarts it. The chief's CPU time is
that per step of a worker, in each epoch. The threads, file descriptors, sockets and memory are
those at the end of training, of the chief and of the ps. Prints a table, and what the launcher said
about the lost worker; the exit code is 1 if a job failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks import marks  # noqa: E402
from tfdist.tools.launch.spawn import die_with  # noqa: E402

DEADLINE = 560.0
EPOCHS = 4
HEADER = (
    "workers",
    "to first step, s",
    "steps/s by epoch",
    "chief's CPU by epoch, ms per worker step",
    "chief: threads",
    "file descriptors",
    "sockets",
    "memory, MB",
    "ps: threads",
    "file descriptors",
    "memory, MB",
    "exit, s",
    "exit code",
)


@dataclass(frozen=True)
class Needs:
    """What a process needs at some moment."""

    threads: int
    descriptors: int
    sockets: int
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[16, 32], metavar="N")
    parser.add_argument("--steps", type=int, default=100, help="steps of a worker per epoch")
    parser.add_argument("--steps_per_execution", type=int, default=1)
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    has_failed, said = False, []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory(prefix="tfdist-many-") as directory:
            code, cells, lines = trained(
                workers, arguments.steps, arguments.steps_per_execution, Path(directory)
            )
        has_failed |= code != 0
        said += lines
        print(f"| {' | '.join(cells)} |", flush=True)
    print("\n" + "\n".join(said))
    sys.exit(1 if has_failed else 0)


def trained(
    workers: int, steps: int, steps_per_execution: int, directory: Path
) -> tuple[int, list[str], list[str]]:
    """Runs a job; returns its exit code, its row of the table, and what was said about the loss."""
    pids, output, recorded = (directory / name for name in ("pids", "output", "marks.json"))
    pids.mkdir()
    command = [sys.executable, "-P", "-m", "tfdist", "run", "--strategy=parameter_server"]
    command += [f"--workers={workers}", "--ps=1", "--chief", "--max_restarts=1"]
    command += [str(ROOT / "scripts" / "benchmarks" / "with_tfdist.py"), "--model=mlp", "--repeat"]
    command += ["--batch_size=32", f"--steps={steps}", f"--epochs={EPOCHS}", f"--pid_dir={pids}"]
    command += [f"--steps_per_execution={steps_per_execution}", f"--output_dir={output}"]
    log, begin = directory / "log", time.time()
    with log.open("w") as file:
        launcher = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT), marks.VARIABLE: str(recorded)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(die_with, os.getpid()),
        )
    needs: dict[str, Needs] = {}

    def epochs() -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((output / "metrics.jsonl").read_text().splitlines())
        return 0

    def sample() -> bool:
        for task in ("chief:0", "ps:0"):
            with contextlib.suppress(OSError):  # It has exited.
                needs[task] = needs_of(int((pids / task).read_text()))
        return recorded.exists()

    victim = f"worker:{workers - 1}"
    try:
        if _wait(lambda: epochs() >= 1, launcher):
            time.sleep(0.5)  # Until the second epoch trains.
            os.kill(int((pids / victim).read_text()), signal.SIGKILL)
            _wait(sample, launcher)
        code = launcher.wait(DEADLINE)
    finally:
        launcher.terminate()
        launcher.wait()
    end = time.time()
    text = log.read_text()
    if code or not recorded.exists() or len(needs) < 2:
        return code or 1, [str(workers), *[""] * (len(HEADER) - 2), str(code)], [text[-3000:]]
    times = json.loads(recorded.read_text())
    total, chief, ps = workers * steps, needs["chief:0"], needs["ps:0"]
    cells = [
        str(workers),
        f"{times['first_step'] - begin:.1f}",
        ", ".join(f"{total / (epoch['end'] - epoch['begin']):.0f}" for epoch in times["epochs"]),
        ", ".join(f"{1000 * epoch['cpu'] / total:.2f}" for epoch in times["epochs"]),
        *(str(chief.threads), str(chief.descriptors), str(chief.sockets), f"{chief.megabytes:.0f}"),
        *(str(ps.threads), str(ps.descriptors), f"{ps.megabytes:.0f}"),
        f"{end - times['last_step']:.1f}",
        str(code),
    ]
    about = [line for line in text.splitlines() if victim in line and "tfdist" in line]
    lost = [line for line in about if re.search("kill|lost|restart|SIGKILL", line)]
    return code, cells, [f"{workers} workers, {victim} received SIGKILL in epoch 2:", *lost, ""]


def needs_of(pid: int) -> Needs:
    """What a process needs now.

    Raises:
      OSError: there is no such process.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(re.findall(r"^(Threads|VmRSS):\s*(\d+)", status, re.MULTILINE))
    targets = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
            targets.append(os.readlink(descriptor))
    sockets = sum(target.startswith("socket:") for target in targets)
    memory = 1.024e-3 * int(found.get("VmRSS", 0))
    return Needs(int(found.get("Threads", 0)), len(targets), sockets, memory)


def _wait(is_reached: Callable[[], bool], launcher: subprocess.Popen[bytes]) -> bool:
    """Waits until `is_reached`; False if the job has ended before."""
    until = time.monotonic() + DEADLINE
    while not is_reached():
        if launcher.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


if __name__ == "__main__":
    main()
