"""What `tfdist horovod build` refuses. `scripts/test` runs the build itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tfdist.process import packages
from tfdist.tools.commands import horovod_build
from tfdist.tools.commands.cli import main

pytestmark = pytest.mark.stacks("2.15", "newest")

BUILD = ["horovod", "build"]


@pytest.fixture
def supported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and a TensorFlow that Horovod supports; returns the cache."""
    monkeypatch.setattr(packages, "installed", lambda: {"tensorflow": "2.21.0"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("installed", [None, "2.22.0"])
def test_an_unsupported_tensorflow_is_named(
    installed: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "installed", lambda: {"tensorflow": installed})
    with pytest.raises(SystemExit, match="2"):
        main(BUILD)
    assert f"error: tensorflow: received {installed!r}" in capsys.readouterr().err


def test_a_missing_compiler_is_named(
    supported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(supported))
    with pytest.raises(SystemExit, match="2"):
        main(BUILD)
    assert "error: cmake: received None" in capsys.readouterr().err
    assert not os.listdir(supported)


def test_a_cache_that_cannot_be_written_is_named(
    supported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr(horovod_build, "_TOOLS", ())
    with pytest.raises(SystemExit, match="2"):
        main(BUILD)
    assert "error: XDG_CACHE_HOME: received '/proc/nowhere'; " in capsys.readouterr().err


def test_a_wheel_is_for_one_tensorflow_python_and_choice_of_parts() -> None:
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    names = {
        horovod_build._name("2.15.1", {}),
        horovod_build._name("2.21.0", {}),
        horovod_build._name("2.21.0", {"HOROVOD_WITH_MPI": "1"}),
        horovod_build._name("2.21.0", {"HOROVOD_GPU_OPERATIONS": "NCCL"}),
    }
    assert len(names) == 4
    assert all(f"-{python}-" in name for name in names)
