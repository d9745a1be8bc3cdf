"""measure_input.py runs with a directory of TFRecords."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.data import cifar10

pytestmark = pytest.mark.stacks("2.15")

SCRIPT = Path(__file__).parents[3] / "scripts" / "benchmarks" / "measure_input.py"


@pytest.mark.timeout(120)
def test_measure_input_prints_consistent_rates(tmp_path: Path) -> None:
    cifar10.write(tmp_path, "digits")
    flags = [f"--data_dir={tmp_path}", "--num_layers=8", "--batch_sizes", "4", "8"]
    flags += ["--seconds=0.01", "--rounds=2"]
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=110
    )
    assert ended.returncode == 0, ended.stderr
    assert "one core, 1257 images, ResNet-8" in ended.stdout
    rows = [line.split(" | ") for line in ended.stdout.splitlines()[-2:]]
    for row, batch_size in zip(rows, ("4", "8"), strict=True):
        assert row[0] == batch_size
        rates = []
        for cell in row[1:4]:
            median, least, greatest = map(float, re.findall(r"\d+", cell))
            assert 0 < least <= median <= greatest
            rates.append(median)
        for ratio, other in zip(row[4:], rates[1:], strict=True):
            assert float(ratio) == pytest.approx(rates[0] / other, rel=0.02, abs=0.06)
