"""What is heard at the address of a leader: nothing, a server, or that the training is complete."""

from __future__ import annotations

import socket
import threading

import pytest

from tfdist import farewell
from tfdist.launch.local import hold_ports


def test_a_farewell_is_no_sign_of_life() -> None:
    with hold_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        assert not farewell.is_up(address)
        assert not farewell.is_said(address)
        saying = threading.Thread(target=farewell.say, args=(address, 1.0))
        saying.start()
        heard = False
        while saying.is_alive() and not heard:
            heard = farewell.is_said(address)
        assert heard
        assert not farewell.is_up(address)
        saying.join()
        assert not farewell.is_said(address)


@pytest.mark.parametrize("greeting", [b"", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"])
def test_who_says_something_else_or_nothing_is_up(greeting: bytes) -> None:
    heard: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asking = threading.Thread(target=lambda: heard.append(farewell.is_up(address)))
        asking.start()
        connection, _ = server.accept()
        with connection:
            connection.sendall(greeting)
            asking.join()
    assert heard == [True]
