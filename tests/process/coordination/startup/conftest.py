"""Clusters on free ports of this machine."""

from __future__ import annotations

from tests.unit.coordination.startup.conftest import job, three

__all__ = ["job", "three"]
