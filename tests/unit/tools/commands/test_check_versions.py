"""`tfdist check --versions`: whether the installed packages fit TensorFlow and Keras."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.tools.commands.cli import main

pytestmark = pytest.mark.stacks("2.15", "newest")


def install(directory: Path, name: str, *requires: str) -> None:
    """Writes what pip would write for version 1.0 of a package."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    (directory / f"{name}-1.0.dist-info").mkdir()
    (directory / f"{name}-1.0.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")


def test_of_the_environment_of_the_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--versions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("python 3.")
    assert [line for line in lines if line.startswith("tensorflow ") and line.endswith(": fits")]


def test_names_the_package_that_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path, "fits_keras", "keras>=2", "numpy", 'keras>=99; extra == "other"')
    install(tmp_path, "too_new", "keras>=99", 'tensorflow>=98; extra == "tf"')
    install(tmp_path, "without_either", "absl-py>=99")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "--versions"]) == 1
    printed = capsys.readouterr().out
    assert "fits-keras 1.0: fits\n" in printed
    assert "too-new 1.0: it requires keras>=99, and " in printed
    assert " is installed; it requires tensorflow>=98, and " in printed
    assert "without" not in printed
