"""`tfdist env`: the versions, the libraries and the machine."""

from __future__ import annotations

import importlib.metadata
import json
import resource
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tfdist.compat import imports
from tfdist.process.version import __version__
from tfdist.tools.commands import cli

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(200)]


def env(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["env", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.horovod
def test_names_versions_libraries_and_the_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "0.2")
    monkeypatch.setenv("TFDIST_TOKEN", "a secret")
    found = env(capsys)
    assert found["versions"]["tfdist"] == __version__
    assert found["TensorFlow"]["version"] == tf.__version__
    assert "CPU" in found["TensorFlow"]["devices"]
    package = found["Keras"]["package of tf.keras"]
    assert package == "keras"
    assert found["Keras"]["version"] == importlib.metadata.version(package)
    assert "Gloo" in found["Horovod"]["built with"]
    assert found["machine"]["cpu"]
    assert found["limits"]["open files"] == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    assert found["variables"]["HOROVOD_CYCLE_TIME"] == "0.2"
    assert "a secret" not in json.dumps(found)


def test_a_library_that_cannot_be_imported_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("import os; os.abort()")
    (tmp_path / "horovod.py").write_text("raise ImportError('no libmpi.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert cli.main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {name: lines[lines.index(name) + 1] for name in ("TensorFlow", "Horovod")}
    assert "fails with code -6" in names["TensorFlow"]
    assert "ImportError: no libmpi.so" in names["Horovod"]


def test_a_library_that_waits_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(1000)")
    (tmp_path / "horovod.py").write_text("raise ModuleNotFoundError('horovod')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(imports, "_SECONDS", 2.0)
    found = imports.try_all()
    assert found["TensorFlow"] == {"import": "does not end within 2 s"}
