"""The versions of installed packages."""

from __future__ import annotations

import importlib.metadata

import pytest

from tfdist.process import packages

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_installed_versions_are_read_from_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tensorflow-cpu": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}

    def version(name: str) -> str:
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)

    assert packages.description().endswith("tensorflow 2.21.0, keras 3.15.1, tf_keras 2.21.0")
    known["tensorflow"] = "2.15.1"
    assert packages.installed()["tensorflow"] == "2.15.1"
    known.clear()
    assert set(packages.installed("horovod")) == {"python", "tfdist"}
