"""The mark of the tests that need the kernel's tunnels, for `--tls`."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

_DEVICE = "/dev/net/tun"

needs_tunnels = pytest.mark.skipif(
    not os.access(_DEVICE, os.R_OK | os.W_OK), reason=f"this user may not open {_DEVICE}"
)


def is_open_to_all() -> bool:
    """Whether every user may open the device."""
    with suppress(OSError):
        return bool(os.stat(_DEVICE).st_mode & 0o006)
    return False
