#!/usr/bin/env python
"""Injects faults into real jobs under `tfdist run`, and prints their cost as a Markdown table.

    scripts/benchmarks/measure_faults.py
    scripts/benchmarks/measure_faults.py --strategy=horovod --fault='kill -9' --fault=SIGTERM

The training is measured_training.py, with a checkpoint every 10 steps. Each fault is injected just
before a checkpoint, when a job loses the most steps. The columns are the times from the fault until

- a line of output names the fault ("detected"),
- no process of the job is left ("all exited"),
- the first step that began after the fault has completed ("next step"); if the job must be started
  again, the time from that start.

The exit code is 1 if an event does not happen before a deadline; the output of that job is printed.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "scripts" / "benchmarks" / "measured_training.py"
DEADLINE = 120.0  # seconds from the start of a job
SAVE_STEPS = 10
FAULT_STEP = 5 * SAVE_STEPS - 2
PREEMPTED = 75
TASKS = {
    "multi_worker_mirrored": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--chief", "--evaluator"],
}


class NotSeen(Exception):
    """An expected event did not happen in time."""


class Fault(NamedTuple):
    """A fault and its expected effect."""

    name: str
    target: str  # a task, or `launcher`
    number: signal.Signals | None  # None for an exception
    line: str | None  # a pattern of the line that names the fault
    then: str  # the job `continues`, `restarts`, `exits`, or resumes if started `again`
    code: int = 0  # the launcher's exit code
    seconds: float = 0.0  # after which a suspended task continues; 0 for never
    flags: tuple[str, ...] = ()  # additional flags of the training


def faults(strategy: str) -> Iterator[Fault]:
    """The faults for a strategy, in the order of the table."""
    kill, stop, term = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
    uses_ps = strategy == "parameter_server"
    alone = ("worker:1", "evaluator:0") if uses_ps else ()
    for task in (*(("chief:0", "ps:0") if uses_ps else ("worker:0", "worker:1")), *alone):
        line = f"^tfdist: {task} was killed by signal 9"
        yield Fault("kill -9", task, kill, line, "continues" if task in alone else "restarts")
    yield Fault("stopped for 2 s", "worker:1", stop, None, "continues", seconds=2.0)
    flag = "--heartbeat_timeout=5"
    for task in ("worker:1", *(("ps:0", "chief:0") if uses_ps else ())):
        name = f"stopped, {flag}"
        yield Fault(name, task, stop, "was lost", "restarts", flags=(flag,))
    if not uses_ps:
        yield Fault("exception", "worker:1", None, "^tfdist: worker:1 failed", "exits", code=1)
    for target in ("chief:0" if uses_ps else "worker:1", "launcher"):
        yield Fault("SIGTERM", target, term, "SIGTERM: saving and exiting", "again", PREEMPTED)
    yield Fault("kill -9", "launcher", kill, None, "again", -kill)


class Step(NamedTuple):
    """A line from measured_training.py: an update, or the beginning of a (resumed) training."""

    time: float
    is_start: bool
    updates: int


class Job:
    """A job under `tfdist run`; `close` kills all its processes."""

    def __init__(self, directory: Path, strategy: str, fault: Fault) -> None:
        restarts = int(fault.then in ("continues", "restarts"))
        command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
        command += [*TASKS[strategy], f"--max_restarts={restarts}", str(TRAINING), *fault.flags]
        self.started = time.monotonic()
        self._directory = directory
        self._launcher = subprocess.Popen(
            [*command, f"--directory={directory}", f"--save_steps={SAVE_STEPS}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._tasks: set[psutil.Process] = set()
        self._lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        self._find_tasks()
        self._launcher.kill()
        for task in self._tasks:
            with suppress(psutil.NoSuchProcess):
                task.kill()
        self._launcher.wait()
        psutil.wait_procs(self._tasks)
        self._reader.join()

    def wait(self, what: str, poll: Callable[[], Any]) -> Any:
        """Calls `poll` until it returns a value other than None; returns the value."""
        has_exited = False
        while (found := poll()) is None:
            if has_exited or time.monotonic() > self.started + DEADLINE:
                print("".join(line for _, line in self._lines), file=sys.stderr)
                raise NotSeen(what)
            has_exited = self.code() is not None
            time.sleep(0.005)
        return found

    def inject(self, fault: Fault) -> float:
        """Injects the fault; returns the time."""
        self._find_tasks()
        injected = time.monotonic()
        if fault.number is None:
            (self._directory / "fail").touch()
        elif fault.target == "launcher":
            self._launcher.send_signal(fault.number)
        else:
            number = int((self._directory / f"{fault.target}.pid").read_text())
            task = next(task for task in self._tasks if task.pid == number)
            task.send_signal(fault.number)
            if fault.seconds:
                time.sleep(fault.seconds)
                task.resume()
        return injected

    def steps(self) -> list[Step]:
        path = self._directory / "steps"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        fields = [line.split() for line in lines if line.endswith("\n")]
        return [Step(float(when), word == "start", int(count)) for when, word, count in fields]

    def reaches(self, updates: int) -> bool | None:
        return any(step.updates >= updates for step in self.steps()[-1:]) or None

    def line(self, pattern: str, since: float) -> float | None:
        """When the first matching line was printed."""
        found = [when for when, line in list(self._lines) if re.search(pattern, line)]
        return next((when for when in found if when > since), None)

    def next_step(self, since: float, then: str) -> tuple[float, int] | None:
        """When the next step was completed, and how many steps were lost."""
        before = [step for step in self.steps() if step.time <= since]
        after = self.steps()[len(before) :]
        if then == "continues":
            # The first step may have begun before the fault.
            return (after[1].time, 0) if len(after) > 1 else None
        while after and not after[0].is_start:
            before.append(after.pop(0))
        return (after[1].time, before[-1].updates - after[0].updates) if len(after) > 1 else None

    def code(self) -> int | None:
        """The launcher's exit code; None while a process of the job is left."""
        code = self._launcher.poll()
        return None if self._reader.is_alive() or any(map(_is_alive, self._tasks)) else code

    def _find_tasks(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._tasks.update(psutil.Process(self._launcher.pid).children(recursive=True))

    def _read(self) -> None:
        assert self._launcher.stdout is not None
        for line in self._launcher.stdout:
            self._lines.append((time.monotonic(), line))


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def measure(directory: Path, strategy: str, fault: Fault) -> tuple[float | None, ...]:
    """The four figures of one job; None for those that do not apply to the fault."""
    detected = ended = next_step = lost = None
    with closing(Job(directory, strategy, fault)) as job:
        job.wait(f"step {FAULT_STEP}", lambda: job.reaches(FAULT_STEP))
        injected = job.inject(fault)
        if line := fault.line:
            detected = job.wait(f"the line {line!r}", lambda: job.line(line, injected)) - injected
        if fault.then in ("continues", "restarts"):
            done, lost = job.wait("the next step", lambda: job.next_step(injected, fault.then))
            next_step = done - injected
        else:
            code = job.wait("the exit", job.code)
            ended = time.monotonic() - injected
            if code != fault.code:
                raise NotSeen(f"exit code {fault.code} (it was {code})")
        if fault.then == "continues":
            updates = job.steps()[-1].updates + 3 * SAVE_STEPS
            job.wait("later steps", lambda: job.reaches(updates))
            if fault.seconds and job.line("restart|was lost", injected):
                raise NotSeen("an undisturbed job")
    if fault.then == "again":
        with closing(Job(directory, strategy, fault)) as job:
            done, lost = job.wait("the next step", lambda: job.next_step(job.started, fault.then))
            next_step = done - job.started
    return detected, ended, next_step, lost


def cells(strategy: str, fault: Fault, repeat: int) -> Iterator[str]:
    """The medians for a row of the table."""
    measured = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="tfdist-faults-") as directory:
            measured.append(measure(Path(directory), strategy, fault))
    for form, values in zip(
        ("{:.2f} s",) * 3 + ("{:g}",), zip(*measured, strict=True), strict=True
    ):
        known = [value for value in values if value is not None]
        yield form.format(statistics.median(known)) if known else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("strategy", "fault"):
        text = "measure only matches of this pattern; may be repeated"
        parser.add_argument(f"--{name}", action="append", metavar="PATTERN", help=text)
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="TIMES", help="runs of each fault, for medians"
    )
    options = parser.parse_args(arguments)
    # Exit normally on SIGTERM, so that the running job is closed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print("| fault | strategy | detected | all exited | next step | steps lost |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    missed = 0
    for strategy in filter(partial(matches, options.strategy), TASKS):
        for fault in faults(strategy):
            name = f"{fault.name}: {fault.target}"
            if not matches(options.fault, name):
                continue
            try:
                found = [*cells(strategy, fault, options.repeat)]
            except NotSeen as error:
                missed += 1
                found = [f"not seen: {error}", "", "", ""]
            print("|", " | ".join([name, f"`{strategy}`", *found]), "|", flush=True)
    return 1 if missed else 0


def matches(patterns: Sequence[str] | None, text: str) -> bool:
    return patterns is None or any(re.search(pattern, text) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
