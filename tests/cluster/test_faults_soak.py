"""Random faults for a few seconds; `scripts/benchmarks/soak.py` also runs for hours."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, run_by_hand

pytestmark = [pytest.mark.stacks(horovod=("2.15",)), pytest.mark.timeout(400)]


@pytest.mark.horovod
def test_horovod_jobs_with_random_faults_give_the_expected_weights(tmp_path: Path) -> None:
    soak = [sys.executable, str(ROOT / "scripts" / "benchmarks" / "soak.py"), "--strategy=horovod"]
    soak += ["--seconds=1", "--every=5", "--epochs=3", "--fault=kill"]
    ended = run_by_hand(tmp_path, {"soak": (soak, {})}, deadline=360)["soak"]
    assert ended.code == 0, ended.output
    found = re.search(r"^(\d+) of (\d+) faults survived$", ended.output, re.MULTILINE)
    assert found, ended.output
    assert found[1] == found[2] != "0"
    assert ended.output.count("\nhorovod: ") + ended.output.startswith("horovod: ") == int(found[1])
    assert re.search(r"\| horovod \| 0\.\d\d \|", ended.output)
