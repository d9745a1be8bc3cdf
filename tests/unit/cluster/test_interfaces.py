"""The network interfaces of this machine."""

from __future__ import annotations

import ipaddress

import pytest

from tfdist.cluster.interfaces import interfaces

pytestmark = pytest.mark.stacks("newest")


def test_loopback_is_among_them() -> None:
    assert interfaces()["lo"] == ipaddress.IPv4Interface("127.0.0.1/8")
