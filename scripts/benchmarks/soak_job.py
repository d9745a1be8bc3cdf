"""A running job of soak.py, and the faults that can be injected into it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import State
from tfdist.tools.launch.spawn import die_with

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "scripts" / "benchmarks" / "soak_training.py"

#: The flags of `tfdist run` and of the script, by strategy.
STRATEGIES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "one_device": (["--strategy=one_device", "--workers=1"], []),
    "mirrored": (["--strategy=mirrored", "--workers=1"], ["--num_cpu_devices=2"]),
    "central_storage": (["--strategy=central_storage", "--workers=1"], ["--num_cpu_devices=2"]),
    "multi_worker_mirrored": (["--strategy=multi_worker_mirrored", "--workers=2"], []),
    "horovod": (["--strategy=horovod", "--workers=2"], []),
    "in_graph": (["--strategy=in_graph", "--workers=2"], []),
    "parameter_server --sync": (["--ps=1", "--workers=2", "--chief", "--sync"], []),
    "parameter_server": (["--ps=1", "--workers=2", "--chief"], []),
}
#: The strategies whose weights do not depend on the times of messages.
SYNCHRONOUS = [name for name in STRATEGIES if name != "parameter_server"]

_STEP_TIMEOUT, _HEARTBEAT_TIMEOUT = 3, 5
_STOPPED_SECONDS, _PARTITION_SECONDS, _FULL_SECONDS = 2.0, 3.0, 5.0
# Within which a task records a step.
_RECORDED_SECONDS = 1.0
# Sends random bytes to a port, and leaves.
_STRANGER = """
import os, socket, sys
for port in sys.argv[1:]:
    try:
        with socket.create_connection(("127.0.0.1", int(port)), 1) as stranger:
            stranger.sendall(os.urandom(1 << 14))
    except OSError:
        pass
"""


class Job:
    """A running job.

    Args:
      directory: where the job writes; it may be a small file system of its own.
      strategy: the name in `STRATEGIES`.
      epochs: the number of epochs.
      save_steps: steps between checkpoints.
    """

    def __init__(self, directory: Path, strategy: str, epochs: int, save_steps: int) -> None:
        self.output = directory / "output"
        self._result = directory / "weights.npz"
        self._log = directory / "log"
        launcher, script = STRATEGIES[strategy]
        command = [sys.executable, "-m", "tfdist", "run", "--max_restarts=1000"]
        command += ["--restart_delay=0", *launcher]
        if len(launcher) > 2 or "--workers=2" in launcher:
            command += [f"--heartbeat_timeout={_HEARTBEAT_TIMEOUT}"]
        if os.geteuid() == 0:
            command += ["--isolate"]
        command += [str(TRAINING), *script, f"--epochs={epochs}", f"--save_steps={save_steps}"]
        command += [f"--output_dir={self.output}", f"--result={self._result}"]
        command += [f"--step_timeout={_STEP_TIMEOUT}"]
        self.started = time.monotonic()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
                preexec_fn=partial(die_with, os.getpid()),
            )

    def checkpoints(self) -> dict[int, Path]:
        """The index files of the checkpoints, by their number of steps."""
        saved = (self.output / "checkpoints").glob("ckpt-*.index")
        return dict(sorted((int(path.stem.rpartition("-")[2]), path) for path in saved))

    def is_complete(self) -> bool:
        """Whether the training has ended; the tasks may still end."""
        return (self.output / "done.json").exists()

    def weights(self) -> np.ndarray:
        """The final weights."""
        with np.load(self._result) as found:
            return np.array(found["weights"])

    def log(self) -> str:
        """What the job has printed."""
        return self._log.read_text(errors="replace")

    def states(self) -> list[State]:
        """What the training tasks do."""
        records = activity.tasks_of_this_machine()
        return [each.state for each in records if each.state.output == str(self.output)]

    def tasks(self) -> list[psutil.Process]:
        """The processes of all tasks."""
        launchers = [psutil.Process(self.process.pid)]
        # With --isolate, the launcher is a child of the process that was started.
        children = [each for launcher in launchers for each in launcher.children(recursive=True)]
        pids = {record.state.pid for record in activity.tasks_of_this_machine()}
        return sorted((each for each in children if each.pid in pids), key=lambda each: each.pid)

    def wait_for_step(self, since: float, trainers: int = 1) -> float | None:
        """Waits until all training tasks make a step; None if the job ends before.

        Args:
          since: the end of a fault, in seconds since 1970.
          trainers: the number of training tasks.

        Returns:
          The seconds from `since` to the step of the last task.
        """
        while self.process.poll() is None:
            steps = [state.last_step for state in self.states()]
            # A step before the fault may have been recorded after it.
            if len(steps) >= trainers and min(steps) > since + _RECORDED_SECONDS:
                return max(0.0, min(steps) - since)
            time.sleep(0.1)
        return None

    def runs_for(self, seconds: float) -> bool:
        """Whether the job still runs after `seconds`; returns immediately when it ends."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))
            return False
        return True


def _random_task(job: Job, rng: random.Random) -> psutil.Process:
    tasks = job.tasks()
    if not tasks:
        raise psutil.NoSuchProcess(0)
    return rng.choice(tasks)


def kill(job: Job, rng: random.Random) -> None:
    """kill -9 of a task."""
    _random_task(job, rng).kill()


def terminate(job: Job, rng: random.Random) -> None:
    """SIGTERM to a task, which saves."""
    _random_task(job, rng).terminate()


def stop(job: Job, rng: random.Random) -> None:
    """A task is stopped for two seconds."""
    task = _random_task(job, rng)
    task.suspend()
    time.sleep(_STOPPED_SECONDS)
    task.resume()


def stop_launcher(job: Job, rng: random.Random) -> None:
    """The launcher is stopped for two seconds."""
    launcher = psutil.Process(job.process.pid)
    launcher.suspend()
    time.sleep(_STOPPED_SECONDS)
    launcher.resume()


def damage(job: Job, rng: random.Random) -> None:
    """The newest checkpoint is cut in half, and a task killed."""
    saved = job.checkpoints()
    task = _random_task(job, rng)
    # Not the only one: the job could not resume.
    if len(saved) > 1:
        newest = list(saved.values())[-1]
        path = newest.with_suffix(".data-00000-of-00001")
        with suppress(FileNotFoundError):
            os.truncate(path, path.stat().st_size // 2)
    task.kill()


def hang(job: Job, rng: random.Random) -> None:
    """A task never returns from its own Python code."""
    request = job.output / "hang"
    request.touch()
    while request.exists() and job.process.poll() is None:
        time.sleep(0.05)


def fill_disk(job: Job, rng: random.Random) -> None:
    """The file system of the output directory is full for five seconds."""
    filler = job.output / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    time.sleep(_FULL_SECONDS)
    filler.unlink()


def partition(job: Job, rng: random.Random) -> None:
    """No packet reaches another task for three seconds."""
    enter = ["nsenter", f"--target={_random_task(job, rng).pid}", "--net"]
    subprocess.run([*enter, "ip", "link", "set", "lo", "down"], check=True)
    time.sleep(_PARTITION_SECONDS)
    subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)


def send_garbage(job: Job, rng: random.Random) -> None:
    """A stranger sends random bytes to every port of the job."""
    enter: list[str] = []
    if os.geteuid() == 0:
        enter = ["nsenter", f"--target={_random_task(job, rng).pid}", "--net"]
    processes = [psutil.Process(job.process.pid)]
    processes += processes[0].children(recursive=True)
    ports = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = process.net_connections("tcp")
            ports |= {each.laddr.port for each in connections if each.status == "LISTEN"}
    command = [*enter, sys.executable, "-c", _STRANGER, *map(str, sorted(ports))]
    subprocess.run(command, check=True)


Fault = Callable[[Job, random.Random], None]
FAULTS: dict[str, Fault] = {
    "kill": kill,
    "terminate": terminate,
    "stop": stop,
    "stop launcher": stop_launcher,
    "damage": damage,
    "hang": hang,
    "full disk": fill_disk,
    "partition": partition,
    "garbage": send_garbage,
}
#: Those that need a file system or a network namespace of the job's own.
OF_ROOT = ("full disk", "partition")
