"""The benchmark runs, and counts the work of the model that it trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks import arithmetic
from benchmarks.jobs import Job, Result, Size
from estimators.resnet import cifar_resnet
from scripts import benchmark

ROOT = Path(__file__).parents[1]


def test_the_work_is_that_of_the_model() -> None:
    model = cifar_resnet(20)
    flops = 0
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.Conv2D):
            pixels = layer.output_shape[1] * layer.output_shape[2]
            flops += 3 * 2 * int(tf.size(layer.kernel)) * pixels
        elif isinstance(layer, tf.keras.layers.Dense):
            flops += 3 * 2 * int(tf.size(layer.kernel))
    assert arithmetic.flops_per_image() == flops
    assert arithmetic.parameters() == sum(int(tf.size(w)) for w in model.trainable_weights)


@pytest.mark.timeout(180)
def test_the_benchmark_runs(tmp_path: Path) -> None:
    found, picture = tmp_path / "results.json", tmp_path / "speed.png"
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py")]
    command += ["--strategies", "horovod", "--processes", "2", "--ways", "plain", "tfdist"]
    command += ["--rounds=1", "--steps=2", "--epochs=3", "--batch_size=8"]
    command += [f"--json={found}", f"--plot={picture}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr
    written = json.loads(found.read_text())
    assert written["machine"]["versions"]["tensorflow"] == tf.__version__
    jobs = written["jobs"]
    named = [(job["way"], job["strategy"], job["processes"], job["cores"]) for job in jobs]
    assert named == [
        ("tfdist", "one_device", 1, 1),
        ("plain", "horovod", 2, 0),
        ("tfdist", "horovod", 2, 0),
    ]
    for job in jobs:
        (measured,) = job["rounds"]
        assert len(measured["images_per_second"]) == 2
        assert f"{job['strategy']} x {job['processes']}" in ended.stdout
        if job["processes"] == 2:
            least = arithmetic.least_bytes_per_step("ring", 2)
            assert measured["bytes_per_step"] > least
    assert picture.stat().st_size > 0


def test_a_job_that_fails_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(job: Job, directory: Path, size: Size) -> Result:
        if job.way == "plain":
            raise RuntimeError(f"{job} failed")
        return Result([10.0], 1e6, 1, 1.0, 1.0)

    monkeypatch.setattr(Job, "run", run)
    found = tmp_path / "results.json"
    flags = ["--processes", "2", "--ways", "plain", "tfdist", "--rounds=1", f"--json={found}"]
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *flags])
    monkeypatch.setattr(benchmark, "measured_peak", lambda: 1e9)
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 1
    output, error = capsys.readouterr()
    assert "horovod x 2, plain failed" in error
    assert "| horovod x 2, tfdist | 10.0" in output
    assert {job["way"] for job in json.loads(found.read_text())["jobs"]} == {"tfdist"}
