"""The wait for the threads in which replicas were traced."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from tfdist.upstream import replica_threads

pytestmark = pytest.mark.stacks("2.15", "newest")


class Ending(threading.Thread):
    """A thread that ends soon after the first check."""

    def is_alive(self) -> bool:
        if not self.ident:
            self.start()
            return True
        return super().is_alive()


def seconds_of_join() -> float:
    begin = time.monotonic()
    tf.train.Coordinator().join([Ending(target=time.sleep, args=[0.05])])
    return time.monotonic() - begin


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Any:
    join = tf.train.Coordinator.join
    monkeypatch.setattr(tf.train.Coordinator, "join", getattr(join, "__wrapped__", join))


def test_a_coordinator_checks_its_threads_once_a_second(original: None) -> None:
    """The workaround is `replica_threads`."""
    assert seconds_of_join() >= 1


def test_a_wait_for_threads_ends_with_them(original: None) -> None:
    replica_threads.apply()
    assert min(seconds_of_join() for _ in range(3)) < 0.9


def test_the_wait_ends_when_a_thread_asks_to_stop(original: None) -> None:
    replica_threads.apply()
    coordinator = tf.train.Coordinator()
    released = threading.Event()
    waiting = threading.Thread(target=released.wait)
    waiting.start()

    def fail() -> None:
        with coordinator.stop_on_exception():
            raise ValueError("wrong")

    failing = threading.Thread(target=fail)
    failing.start()
    try:
        with pytest.raises(ValueError, match="wrong"):
            coordinator.join([waiting, failing], stop_grace_period_secs=0.1)
    finally:
        released.set()
        waiting.join()
        failing.join()
