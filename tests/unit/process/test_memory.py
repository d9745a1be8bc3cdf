"""The warning before memory ends."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tfdist.process import memory
from tfdist.process.memory import Memory

pytestmark = pytest.mark.stacks("newest")

GB = 10**9


def test_a_task_warns_once_before_memory_ends(capfd: pytest.CaptureFixture[str]) -> None:
    found = iter([(4 * GB, 32 * GB), (8 * 10**6, 32 * GB), (10**6, 32 * GB)])
    looked = Memory("ps:0", measure=lambda: next(found))
    looked.look()
    assert capfd.readouterr().err == ""
    looked.look()
    text = capfd.readouterr().err
    assert (
        "ps:0 uses" in text and "of the 32.0 GB of its machine or container 8.0 MB are left" in text
    )
    looked.look()
    assert capfd.readouterr().err == ""


def test_memory_that_others_use_is_not_of_this_task(capfd: pytest.CaptureFixture[str]) -> None:
    Memory("ps:0", measure=lambda: (100 * 2**40, 2000 * 2**40)).look()
    assert capfd.readouterr().err == ""


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    machine = psutil.virtual_memory().total
    assert memory.left_of(tmp_path)[1] == machine
    (tmp_path / "memory.current").write_text(f"{3 * 2**20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.left_of(tmp_path)[1] == machine
    (tmp_path / "memory.max").write_text(f"{4 * 2**20}\n")
    assert memory.left_of(tmp_path) == (2**20, 4 * 2**20)
