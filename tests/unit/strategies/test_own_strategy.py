"""A custom strategy: one module, one table row and one flag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Ended, run_by_hand

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(200)]

SCRIPT = str(ROOT / "tests" / "support" / "own_strategy.py")


def run(tmp_path: Path, *flags: str) -> Ended:
    command = [sys.executable, SCRIPT, f"--output_dir={tmp_path / 'output'}", *flags]
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


def test_other_strategies_reject_its_flag(tmp_path: Path) -> None:
    done = run(tmp_path, "--strategy=one_device", "--gradient-scale=3")
    assert done.code == 2
    assert "--gradient_scale: received 3.0; accepted: not supported with" in done.output
