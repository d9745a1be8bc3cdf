"""A process in a cgroup that may use one CPU of a machine with several cores, as in a container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.stacks("2.15")

ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
LIMITED = "TF_NUM_INTEROP_THREADS=2 TF_NUM_INTRAOP_THREADS=1 OMP_NUM_THREADS=1"

SCRIPT = """
import os, tfdist
import tensorflow as tf

def build_model(job):
    model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

@tfdist.main
def main(job):
    data = tf.data.Dataset.from_tensors((tf.zeros([4, 8]), tf.zeros([4, 1])))
    job.fit(build_model, lambda context: data, epochs=1, output_dir="output")
    print(*(f"{name}={value}" for name, value in os.environ.items() if name.endswith("_THREADS")))
    print(len(os.sched_getaffinity(0)), "cores")

tfdist.run(main)
"""


@pytest.fixture
def enter_cgroup() -> Iterator[Callable[[], None]]:
    """A function that limits the calling process to one CPU's time, on any core."""
    if os.geteuid() != 0 or os.cpu_count() == 1:
        pytest.skip("needs root and two cores")
    top, file, quota = Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "100000"
    if not top.is_dir():  # Version 2.
        top, file, quota = top.parent, "cpu.max", "100000 100000"
    directory = top / f"tfdist-{uuid.uuid4().hex[:8]}"

    def enter() -> None:
        (directory / "cgroup.procs").write_text("0")
        os.sched_setaffinity(0, range(os.cpu_count() or 1))

    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be created here: {error}")
    try:
        (directory / file).write_text(quota)
        yield enter
    finally:
        until = time.monotonic() + 30
        while (directory / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        directory.rmdir()


def test_tasks_divide_the_quota_and_not_the_cores(
    enter_cgroup: Callable[[], None], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    command = [sys.executable, "-m", "tfdist", "run", "--workers=2", "--dry_run", "train.py"]

    printed = subprocess.run(
        command,
        cwd=tmp_path,
        env=ENVIRON,
        preexec_fn=enter_cgroup,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert printed.stdout.count(f" {LIMITED} ") == 2, printed


def test_a_task_that_is_started_by_hand_takes_the_threads_of_its_quota(
    enter_cgroup: Callable[[], None], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    printed = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=ENVIRON,
        preexec_fn=enter_cgroup,
        capture_output=True,
        text=True,
        timeout=100,
    )

    cores = os.cpu_count()
    assert printed.returncode == 0, printed
    assert f", 1 thread (cgroup quota) of {cores} cores\n" in printed.stderr
    variables = re.findall(r"\w+_THREADS=\d+", printed.stdout)
    assert sorted(variables) == sorted(LIMITED.split()), printed
    assert f"{cores} cores\n" in printed.stdout
