"""What is sent together between workers and ps changes nothing of what a step does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import ROOT, launch

pytestmark = pytest.mark.timeout(180)

PROGRAM = str(ROOT / "tests" / "support" / "transfers_program.py")


def test_random_steps_do_the_same_with_fewer_transfers(tmp_path: Path) -> None:
    ended = launch(
        tmp_path, "--strategy=parameter_server", "--ps=2", "--workers=1", PROGRAM, deadline=150
    )
    assert ended.code == 0, ended.output
    found = re.findall(r"transfers (\d+) (\d+)", ended.output)
    by_itself, packed = zip(*((int(before), int(after)) for before, after in found), strict=True)
    assert len(found) == 10
    assert "under a lock" in ended.output
    assert sum(packed) < 0.7 * sum(by_itself)
