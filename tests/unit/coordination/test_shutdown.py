"""The completion notice, which a launcher sends for a chief that has succeeded."""

from __future__ import annotations

import threading

import pytest

from tfdist.coordination.probe import Listener, identify
from tfdist.coordination.shutdown import announce_completion
from tfdist.tools.launch.local import hold_ports

pytestmark = pytest.mark.stacks("newest")


def test_the_notice_is_sent_for_a_while() -> None:
    with hold_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        assert identify(address) is Listener.REFUSED
        sending = threading.Thread(target=announce_completion, args=(address, "token", 1.0))
        sending.start()
        found = Listener.REFUSED
        while sending.is_alive() and found is Listener.REFUSED:
            found = identify(address, "token")
        assert found is Listener.COMPLETED
        assert identify(address, "token") is Listener.COMPLETED
        assert identify(address, "another token") is Listener.OTHER
        sending.join()
        assert identify(address) is Listener.REFUSED
