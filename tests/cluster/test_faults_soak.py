"""Random faults for a quarter of a minute; `scripts/soak.py` goes on for as long as one likes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, Tasks, run_by_hand

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_jobs_with_random_faults_end_with_the_right_weights(tmp_path: Path, strategy: str) -> None:
    soak = [sys.executable, str(ROOT / "scripts" / "soak.py"), f"--strategy={strategy}"]
    task: Tasks = {"soak": ([*soak, "--seconds=15", "--every=2", "--epochs=3"], {})}
    ended = run_by_hand(tmp_path, task, deadline=360)["soak"]
    assert ended.code == 0, ended.output
    found = re.search(r"(\d+) faults in \d+ jobs, all of which ended", ended.output)
    assert found, ended.output
    faults = re.findall(r"^(?:kill|terminate|stop|damage) task \d at", ended.output, re.MULTILINE)
    assert len(faults) == int(found[1])
