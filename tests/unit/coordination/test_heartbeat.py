"""This process ends if a peer no longer answers, but not if a peer has exited."""

from __future__ import annotations

import pytest

from tfdist.coordination import heartbeat
from tfdist.coordination.probe import Listener
from tfdist.errors import LostTaskError


@pytest.mark.parametrize("no_answer", [Listener.SILENT, Listener.UNREACHABLE])
@pytest.mark.parametrize(
    "answer",
    [found for found in Listener if found not in (Listener.SILENT, Listener.UNREACHABLE)],
)
def test_a_task_is_lost_after_the_timeout_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, no_answer: Listener, answer: Listener
) -> None:
    now = 0.0
    ended: list[BaseException] = []
    # An answer every 25 seconds, and no answer after the second one.
    found = iter([*([no_answer] * 4 + [answer]) * 2, *[no_answer] * 100])

    def sleep(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    monkeypatch.setattr(heartbeat, "identify", lambda _: next(found))
    heartbeat._watch({"ps:0": "10.0.0.3:2222"}, 30.0, ended.append, sleep)
    (error,) = ended
    assert isinstance(error, LostTaskError)
    assert str(error) == (
        "ps:0 was lost: nothing at 10.0.0.3:2222 has answered for 30 s (--heartbeat_timeout)"
    )
    assert now == 50.0 + 30.0
