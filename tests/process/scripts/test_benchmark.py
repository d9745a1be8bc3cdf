"""The benchmarks run, and the operation counts match the model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from estimators.resnet import cifar_resnet
from scripts.benchmarks import arithmetic, benchmark, marks, profiles, runs
from scripts.benchmarks.jobs import APART, Commands, Job, Size, marks_of
from scripts.benchmarks.runs import Result, Run

pytestmark = pytest.mark.stacks("2.15")

ROOT = Path(__file__).parents[3]
# Tracing a ResNet-20 takes most of the time of a short job.
SMALL = ["--steps=2", "--batch_size=8", "--num_layers=8"]


@pytest.mark.parametrize("num_layers", [8, 20])
def test_the_operation_counts_match_the_model(num_layers: int) -> None:
    model = cifar_resnet(num_layers)
    flops = 0
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.Conv2D):
            pixels = layer.output_shape[1] * layer.output_shape[2]
            flops += 3 * 2 * int(tf.size(layer.kernel)) * pixels
        elif isinstance(layer, tf.keras.layers.Dense):
            flops += 3 * 2 * int(tf.size(layer.kernel))
    assert arithmetic.flops_per_image(num_layers) == flops
    counted = sum(int(tf.size(w)) for w in model.trainable_weights)
    assert arithmetic.parameters(num_layers) == counted


@pytest.mark.timeout(180)
def test_the_benchmark_runs(tmp_path: Path) -> None:
    found, picture = tmp_path / "results.json", tmp_path / "speed.png"
    command = [sys.executable, str(ROOT / "scripts" / "benchmarks" / "benchmark.py")]
    command += ["--strategies", "horovod", "--processes", "2", "--ways", "tfdist"]
    command += ["--rounds=1", *SMALL]
    command += [f"--json={found}", f"--plot={picture}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr
    written = json.loads(found.read_text())
    assert written["machine"]["versions"]["tensorflow"] == tf.__version__
    (jobs,) = written["in_turn"]
    named = [(job["way"], job["strategy"], job["processes"], job["cores"]) for job in jobs]
    assert named == [
        ("tfdist", "one_device", 1, 1),
        ("tfdist", "apart", 2, 0),
        ("tfdist", "horovod", 2, 0),
    ]
    for job in jobs:
        assert len(job["images_per_second"]) == 1
        assert f"{job['strategy']} x {job['processes']}" in ended.stdout
        if job["strategy"] == "horovod":
            least = arithmetic.least_bytes_per_step("ring", 2, num_layers=8)
            assert job["bytes_per_step"] > least
    assert picture.stat().st_size > 0


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


# Two epochs without TensorFlow.
WITHOUT_TENSORFLOW = """
from scripts.benchmarks.marks import Marks

marks = Marks()
for epoch in range(2):
    marks.epoch_begins()
    marks.step_ends()
    marks.epoch_ends()
"""


@pytest.mark.timeout(120)
def test_a_benchmark_that_receives_sigterm_leaves_no_process(tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "benchmarks" / "benchmark.py")
    arguments = [script, "--strategies", "horovod", "--processes", "2"]
    arguments += ["--ways", "plain_without_onednn", "plain_with_onednn"]
    training = tmp_path / "training.py"
    training.write_text(WITHOUT_TENSORFLOW)
    program = f"""
import runpy, sys
from scripts.benchmarks import jobs
jobs._program = lambda name: {str(training)!r}
sys.argv = {arguments}
runpy.run_path({script!r}, run_name="__main__")
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as running:
        started: list[psutil.Process] = []
        while not any(map(_is_stopped, started)):
            assert running.poll() is None
            time.sleep(0.1)
            started = psutil.Process(running.pid).children(recursive=True)
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    _, left = psutil.wait_procs(started, timeout=30)
    assert left == []


def test_kernels_that_run_at_the_same_time_share_the_time() -> None:
    changes = [
        (0, "convolutions", 1),
        (4, "normalization", 1),
        (6, "convolutions", -1),
        (9, "normalization", -1),
        (12, "convolutions", 1),
        (13, "convolutions", -1),
    ]
    shared = profiles.shared_seconds((1e12 * at, kind, change) for at, kind, change in changes)
    assert shared == {"convolutions": 6.0, "normalization": 4.0, "other kernels": 0.0}


TRAINING = """
import sys, time
from pathlib import Path
from scripts.benchmarks.marks import Marks

name, path, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
marks = Marks()
for epoch in range(epochs):
    marks.epoch_begins()
    assert (name, epoch) != ("fails", 1)
    begin = time.time()
    time.sleep(0.1)
    marks.step_ends()
    with path.open("a") as file:
        print(name, epoch, begin, time.time(), file=file)
    marks.epoch_ends()
marks.write()
"""


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the commands of jobs with TRAINING; returns the file with the recorded epochs."""
    recorded = tmp_path / "recorded"

    def commands(job: Job, ports: Sequence[int], directory: Path, size: Size) -> Commands:
        training = [sys.executable, "-c", TRAINING]
        return [
            (
                [*training, name, str(recorded), str(size.epochs)],
                {marks.VARIABLE: str(marks_of(directory, index))},
            )
            for index, name in enumerate(job.way.split())
        ]

    monkeypatch.setattr(Job, "commands", commands)
    return recorded


def test_jobs_train_in_turn_and_one_that_fails_does_not_affect_the_others(
    tmp_path: Path, trainings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = {name: Job(name, "horovod", 1) for name in ("one", "fails", "other")}
    results = runs.run_in_turn(jobs, tmp_path, Size(64, 1, epochs=3))
    assert list(results) == ["one", "other"]
    assert all(len(result.images_per_second) == 2 for result in results.values())
    error = capsys.readouterr().err
    assert "horovod x 1, fails exited early" in error and "AssertionError" in error

    epochs = [line.split() for line in trainings.read_text().splitlines()]
    assert [(name, int(epoch)) for name, epoch, *_ in epochs] == [
        *[("one", 0), ("fails", 0), ("other", 0)],
        *[("one", 1), ("other", 1)],
        *[("one", 2), ("other", 2)],
    ]
    times = [float(time) for *_, begin, end in epochs for time in (begin, end)]
    assert times == sorted(times)


def test_a_failed_job_fails_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_in_turn(jobs: dict[Job, Job], directory: Path, size: Size) -> dict[Job, Result]:
        rates = {"plain": [5.0, 10.0, 40.0], "tfdist": [10.0, 30.0, 40.0]}
        return {job: Result(rates[job.way], 1e6, 1, 1.0, 1.0) for job in jobs if job.processes == 2}

    monkeypatch.setattr(benchmark, "run_in_turn", run_in_turn)
    monkeypatch.setattr(benchmark, "measured_peak", lambda: 1e9)
    found = tmp_path / "results.json"
    flags = ["--strategies", "horovod", "--processes", "2", "--ways", "plain", "tfdist"]
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *flags, f"--json={found}"])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 1
    output = capsys.readouterr().out
    assert "| horovod x 2, plain | 10.0 (5.0 to 40.0) | 2.00 (1.00 to 3.00) |" in output
    (jobs,) = json.loads(found.read_text())["in_turn"]
    assert [job["strategy"] for job in jobs] == ["apart", "horovod", "horovod"]


def test_apart_trainings_end_when_one_fails(tmp_path: Path, trainings: Path) -> None:
    job = Job("one fails", APART, 2)
    with closing(Run(job, tmp_path, Size(64, 1, epochs=3), in_turn=True)) as run:
        run.wait_for_turn(1)
        run.train(1)
        with pytest.raises(RuntimeError, match="apart x 2, one fails exited early"):
            run.wait_for_turn(2)


def test_a_training_that_waits_for_a_turn_exits_when_the_benchmark_ends(
    tmp_path: Path, trainings: Path
) -> None:
    training = [sys.executable, "-c", TRAINING, "one", str(trainings), "3"]
    recorded = tmp_path / "marks.json"
    environ = {marks.VARIABLE: str(recorded), marks.TURNS_VARIABLE: str(tmp_path)}
    with marks.enable_turns(tmp_path):
        waiting = subprocess.Popen(
            training, env={**os.environ, **environ}, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        while not marks.waiting_file(recorded, 1).exists():
            assert waiting.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)
        assert waiting.poll() is None
    _, error = waiting.communicate(timeout=20)
    assert (waiting.returncode, error) == (1, "the benchmark has ended\n")
