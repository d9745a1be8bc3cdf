"""What is on the ps is read together when it is saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import ROOT, launch

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(120)]

PROGRAM = str(ROOT / "tests" / "cluster" / "saving_program.py")


def test_checkpoints_have_the_values_and_no_function_is_traced_for_each(tmp_path: Path) -> None:
    output = f"--output_dir={tmp_path / 'output'}"
    ended = launch(
        tmp_path,
        *("--strategy=parameter_server", "--ps=2", "--workers=1", "--chief", PROGRAM, output),
        deadline=100,
    )
    assert ended.code == 0, ended.output
    names = "by TensorFlow|together|with another one"
    traced = dict(re.findall(rf"({names}) ([\d and]+)$", ended.output, re.MULTILINE))
    # When TensorFlow traces no more, there is no need to do better.
    assert traced == {
        "by TensorFlow": "1",
        "together": "0 0 0 and 1",
        "with another one": "0 and 2",
    }
