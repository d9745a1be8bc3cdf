"""Random faults for three seconds; `scripts/benchmarks/soak.py` also runs for longer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Tasks, run_by_hand

pytestmark = [pytest.mark.stacks(horovod=("2.15",)), pytest.mark.timeout(400)]


@pytest.mark.horovod
def test_horovod_jobs_with_random_faults_give_the_expected_weights(tmp_path: Path) -> None:
    soak = [sys.executable, str(ROOT / "scripts" / "benchmarks" / "soak.py"), "--strategy=horovod"]
    task: Tasks = {"soak": ([*soak, "--seconds=3", "--every=2", "--epochs=1"], {})}
    ended = run_by_hand(tmp_path, task, deadline=360)["soak"]
    assert ended.code == 0, ended.output
    found = re.search(r"(\d+) faults in \d+ jobs, all of which gave", ended.output)
    assert found, ended.output
    faults = re.findall(r"^(?:kill|terminate|stop|damage) task \d at", ended.output, re.MULTILINE)
    assert len(faults) == int(found[1])
