"""The gradients of the last layers are sent while those of the first ones are computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[2] / "support" / "packs_program.py")


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_each_layer_of_four_mebibytes_is_a_pack(strategy: str, tmp_path: Path) -> None:
    options = [f"--strategy={strategy}", "--workers=2", PROGRAM, f"--output_dir={tmp_path / 'out'}"]
    ended = launch(tmp_path / "log", *options, deadline=120)
    assert ended.code == 0, ended.output
    # A kernel and its bias; the first also has the denominators of the replicas.
    assert "packs: [3, 2, 2]" in ended.output
