"""How a task that serves learns that the chief has ended."""

from __future__ import annotations

import socket

import pytest

from tfdist.strategies.serving import wait_for_end


@pytest.mark.parametrize(
    ("answers", "patience"),
    [
        ("up down down down", 3),
        ("up down", 1),
        ("up up up down down down", 3),
        ("down down down down down up down down down", 3),
        ("up down down up down up down down down", 3),
    ],
)
def test_it_ends_after_patience_misses_in_a_row_once_it_was_up(answers: str, patience: int) -> None:
    asked: list[str] = []
    slept: list[float] = []
    coming = iter(answers.split())

    def is_up(address: str) -> bool:
        asked.append(address)
        return next(coming) == "up"

    wait_for_end("a:1", is_up=is_up, sleep=slept.append, patience=patience)

    assert list(coming) == []
    assert asked == ["a:1"] * len(answers.split())
    assert set(slept) == {1.0}
    assert len(slept) >= len(asked) - 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_sees_a_real_socket_close(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family)
    port = server.getsockname()[1]
    slept = 0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        assert slept < 20
        if slept == 4:
            server.close()

    wait_for_end(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", sleep=sleep)

    assert slept == 4 + 3
