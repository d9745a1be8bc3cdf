"""A custom strategy: one module with its options, and one row; nothing else changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Ended, run_by_hand

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(400)]

SCRIPT = ROOT / "tests" / "support" / "own_strategy.py"

# What an installed package has: a module that does not import TensorFlow, and an entry point.
ROW = """
from dataclasses import dataclass
from tfdist.config.strategies import Options, StrategySpec, option

@dataclass(frozen=True)
class DoubledOptions(Options):
    doubled_times: int = option(1, "how often the gradients are doubled", least=1)

ROW = StrategySpec("doubled", "doubled_strategy:Doubled", DoubledOptions, single_replica=True)
"""
STRATEGY = """
import tensorflow as tf
from tfdist.strategies.one_device import OneDevice

class Doubled(OneDevice):
    name = "doubled"

    def wrap_optimizer(self, optimizer):
        print("doubled", self.options.doubled_times, flush=True)
        return optimizer
"""
TRAINING = """
import tfdist
import tensorflow as tf

def build_model(job):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def train_input(context):
    return tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.ones([8, 1])))

@tfdist.main
def main(job):
    job.fit(build_model, train_input, epochs=1, output_dir=__file__ + ".output", verbose=0)

if __name__ == "__main__":
    tfdist.run(main)
"""


def run(tmp_path: Path, *flags: str) -> Ended:
    command = [sys.executable, str(SCRIPT), f"--output_dir={tmp_path / 'output'}", *flags]
    return run_by_hand(tmp_path, {"script": (command, {})}, deadline=90)["script"]


@pytest.mark.parametrize(
    ("flags", "weight"),
    # The gradient of (4w - 1)² is -2 for each weight, and the rate is 0.01.
    [([], "0.020"), (["--gradient_scale=3"], "0.060")],
)
def test_a_custom_strategy_trains(tmp_path: Path, flags: list[str], weight: str) -> None:
    done = run(tmp_path, "--strategy=scaled", *flags)
    assert done.code == 0, done.output
    assert f"scaled: weight {weight}" in done.output
    assert (tmp_path / "output" / "done.json").exists()


def test_its_flag_is_in_the_help_and_is_checked(tmp_path: Path) -> None:
    shown = run(tmp_path, "--helpfull").output
    assert "scaled: the factor of the gradients (default 1)" in " ".join(shown.split())
    for flags, message in (
        (["--strategy=one_device", "--gradient-scale=3"], "received 3.0; accepted: not supported"),
        (["--strategy=scaled", "--gradient_scale=0"], "received 0.0; accepted: above 0"),
    ):
        done = run(tmp_path, *flags)
        assert done.code == 2
        assert f"--gradient_scale: {message}" in done.output


def test_an_installed_package_brings_a_strategy(tmp_path: Path) -> None:
    """The script and the launcher know it without importing it."""
    package = tmp_path / "package"
    metadata = package / "doubled-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: doubled\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tfdist.strategies]\ndoubled = doubled_row:ROW\n")
    (package / "doubled_row.py").write_text(ROW)
    (package / "doubled_strategy.py").write_text(STRATEGY)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    environ = {**os.environ, "PYTHONPATH": f"{package}:{ROOT}"}

    def tfdist_run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tfdist", "run", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180)
        shutil.rmtree(f"{script}.output", ignore_errors=True)
        return done

    before = ["--strategy=doubled", "--doubled-times=3"]
    trained = tfdist_run(*before, str(script))
    assert trained.returncode == 0, trained.stderr
    assert "doubled 3" in trained.stdout
    refused = tfdist_run("--strategy=mirrored", "--doubled_times=3", str(script))
    assert refused.returncode == 2
    assert "choose --strategy=doubled" in refused.stderr
    shown = " ".join(tfdist_run("--help").stdout.split())
    assert "doubled: how often the gradients are doubled (default 1)" in shown
