"""What every test of a single module has of its own."""

from __future__ import annotations

import pytest

from tfdist.process import excepthook


@pytest.fixture(autouse=True)
def own_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hook of an uncaught exception stays behind a test that creates a job."""
    monkeypatch.setattr(excepthook, "hooks", excepthook.Hooks())
