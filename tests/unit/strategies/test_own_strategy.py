"""A custom strategy: one module, one table row and one flag."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(200)]

SCRIPT = str(ROOT / "tests" / "support" / "own_strategy.py")


def run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, f"--output_dir={tmp_path / 'output'}", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize(
    ("flags", "weight"),
    # The gradient of (4w - 1)² is -2 for each weight, and the rate is 0.01.
    [([], "0.020"), (["--gradient_scale=3"], "0.060")],
)
def test_a_custom_strategy_trains(tmp_path: Path, flags: list[str], weight: str) -> None:
    done = run(tmp_path, "--strategy=scaled", *flags)
    assert done.returncode == 0, done.stderr
    assert f"scaled: weight {weight}" in done.stdout
    assert (tmp_path / "output" / "done.json").exists()


def test_other_strategies_reject_its_flag(tmp_path: Path) -> None:
    done = run(tmp_path, "--strategy=one_device", "--gradient-scale=3")
    assert done.returncode == 2
    assert "--gradient_scale: received 3.0; accepted: not supported with" in done.stderr
