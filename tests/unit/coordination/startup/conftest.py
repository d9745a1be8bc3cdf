"""Clusters on free ports of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.startup import workers
from tfdist.cluster import Cluster
from tfdist.tools.launch.local import hold_ports


@pytest.fixture
def three() -> Iterator[Cluster]:
    with hold_ports(3) as ports:
        yield workers(ports)


@pytest.fixture
def job() -> Iterator[Cluster]:
    """Two workers and a ps; the first worker is the chief."""
    with hold_ports(3) as ports:
        first, second, ps = (f"127.0.0.1:{port}" for port in ports)
        yield Cluster(worker=(first, second), ps=(ps,))
