"""The common last step of preempted tasks, and the effect of signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tfdist.coordination.preemption import SIGNALS, Preemption
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.errors import EXIT_PREEMPTED

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(30)]


class MemoryStore:
    """A `KeyValueStore` for threads."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._written = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._written:
            self._values[key] = value
            self._written.notify_all()

    def get(self, key: str, seconds: float) -> str | None:
        with self._written:
            self._written.wait_for(lambda: key in self._values, min(seconds, 2.0))
            return self._values.get(key)


class AllReduce:
    """Simulates all-reduce training: a barrier makes each step wait for every task."""

    def __init__(self, tasks: int) -> None:
        self.barrier = threading.Barrier(tasks, timeout=60.0)

    def train(self, preemption: Preemption, steps: int, seconds: float, asks_after: int = 0) -> int:
        for done in range(steps):
            # The pauses differ, so that a signal arrives before, during and after a step.
            time.sleep(seconds)
            if not preemption.begin_step():
                return done
            time.sleep(seconds)
            self.barrier.wait()
            if preemption.should_stop():
                return done + 1
            if preemption.end_step(asks=done + 1 == asks_after):
                return done + 1
        return steps


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # The tests may run under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("signalled", "asking"),
    [
        ((0,), ()),
        ((2,), ()),
        ((0, 1, 2), ()),
        ((), (0,)),
        ((), (2,)),
        ((), (0, 1, 2)),
        ((1,), (0,)),
    ],
)
@pytest.mark.parametrize("attempt", range(4))
def test_all_tasks_stop_after_the_same_step(
    signalled: tuple[int, ...], asking: tuple[int, ...], attempt: int
) -> None:
    names = [f"worker:{index}" for index in range(3)]
    preemptions = [Preemption() for _ in names]
    store, job = MemoryStore(), AllReduce(3)
    steps: dict[str, int] = {}

    def run(index: int) -> None:
        with preemptions[index].watched(names[index], names, store):
            asks_after = attempt + 1 if index in asking else 0
            steps[names[index]] = job.train(preemptions[index], 1000, 0.004 * index, asks_after)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.02 * (attempt + 1))
    for index in signalled:
        preemptions[index]._requests.put(True)
    for thread in threads:
        thread.join()
    assert len(set(steps.values())) == 1
    assert 0 < steps["worker:0"] < 1000
    if len(asking) == 3:
        # As one process would.
        assert steps["worker:0"] == attempt + 1


def test_a_training_task_reads_the_store_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read is a request, for which the server searches all sockets of its machine."""
    store = RendezvousStore("127.0.0.1", 1, "")
    reads: list[str] = []
    monkeypatch.setattr(store, "_read", reads.append)  # Finds nothing.
    with Preemption().watched("worker:0", ["worker:0", "worker:1"], store):
        time.sleep(1.2)
    assert 1 <= len(reads) <= 3


@pytest.mark.parametrize("has_ended_step", [False, True])
def test_no_task_stops_after_a_step_that_another_one_has_ended(has_ended_step: bool) -> None:
    names, store = ["worker:0", "worker:1"], MemoryStore()
    first, second = Preemption(), Preemption()
    with first.watched(names[0], names, store), second.watched(names[1], names, store):
        assert first.begin_step() and second.begin_step()
        if has_ended_step:
            assert not first.end_step(asks=False)
            assert not second.end_step(asks=True)
            assert first.begin_step() and second.begin_step()
        assert second.end_step(asks=True) == ["worker:1"]
        assert first.end_step(asks=False) == ["worker:1"]
        # This is not a preemption.
        assert not first.should_stop() and first.begin_step()


def test_nohup_is_respected(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Preemption().listen()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_task_that_trains_alone_stops_after_its_step(handlers: None, number: int) -> None:
    preemption = Preemption()
    preemption.listen()
    with preemption.watched("worker:0", ["worker:0"]):
        assert preemption.begin_step()
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 60
        while not preemption.should_stop() and time.monotonic() < deadline:
            pass
        assert preemption.should_stop()
        assert not preemption.begin_step()
    assert preemption.is_requested


def test_without_a_signal_training_continues() -> None:
    preemption = Preemption()
    before = threading.enumerate()
    for store in (None, MemoryStore()):
        with preemption.watched("worker:0", ["worker:0", "worker:1"], store):
            assert preemption.begin_step()
            assert not preemption.should_stop()
    preemption._stop_watching()
    assert set(threading.enumerate()) <= set(before)


def test_a_lost_peer_is_an_error() -> None:
    class Lost(MemoryStore):
        def get(self, key: str, seconds: float) -> str | None:
            if key.endswith("worker:1"):
                raise ConnectionError("worker:1 is gone")
            return super().get(key, seconds)

    preemption = Preemption()
    with preemption.watched("worker:0", ["worker:0", "worker:1"], Lost()):
        preemption._requests.put(True)
        with pytest.raises(RuntimeError, match="worker:1 is gone"):
            while not preemption.should_stop():
                pass


def test_rank_0_stops_after_all_other_tasks_have_read_its_store() -> None:
    """Horovod's key-value store is a server in the process of rank 0."""
    names = ["0", "1"]
    first_has_stopped = threading.Event()
    late: list[bool] = []

    class SlowForTheSecond(MemoryStore):
        def get(self, key: str, seconds: float) -> str | None:
            # The first task has time to stop before the second task gets its answer.
            if threading.current_thread() is second._watcher and key.endswith(".0"):
                time.sleep(0.5)
                late.append(first_has_stopped.is_set())
            return super().get(key, seconds)

    store, first, second = SlowForTheSecond(), Preemption(), Preemption()
    with first.watched("0", names, store), second.watched("1", names, store):
        first._requests.put(True)
        deadline = time.monotonic() + 60
        while not first.should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first.should_stop()
        first_has_stopped.set()
        while not second.should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert second.should_stop()
    assert late == [False]


def test_a_failed_read_of_the_store_is_retried() -> None:
    class Busy(MemoryStore):
        failures = 2

        def get(self, key: str, seconds: float) -> str | None:
            if self.failures:
                self.failures -= 1
                raise TimeoutError
            return super().get(key, seconds)

    preemption, store = Preemption(), Busy()
    with preemption.watched("worker:0", ["worker:0"], store):
        while store.failures:
            assert preemption.begin_step()
        preemption._requests.put(True)
        while not preemption.should_stop():
            pass


def test_each_training_uses_its_own_keys() -> None:
    preemption, store = Preemption(), MemoryStore()
    with preemption.watched("worker:0", ["worker:0"], store):
        preemption._requests.put(True)
        while not preemption.should_stop():
            pass
    with preemption.watched("worker:0", ["worker:0"], store):
        time.sleep(0.6)
        assert preemption.begin_step()
        assert not preemption.should_stop()
        assert preemption.end_step(asks=True)
    with preemption.watched("worker:0", ["worker:0"], store):
        time.sleep(0.6)
        assert preemption.begin_step()
        assert not preemption.end_step(asks=False)


def test_the_end_of_a_training_does_not_wait_for_the_store() -> None:
    begun = threading.Event()

    class SlowStore(MemoryStore):
        def get(self, key: str, seconds: float) -> str | None:
            begun.set()
            time.sleep(seconds)
            return None

    # An earlier test may have left one.
    others = {*threading.enumerate()}
    preemption = Preemption()
    with preemption.watched("worker:0", ["worker:0"], SlowStore()):
        assert begun.wait(60)
        end = time.monotonic()
    ended = time.monotonic() - end
    with preemption.watched("worker:0", ["worker:0"]):
        # The next training waits for the thread of this one.
        assert ended < (time.monotonic() - end) / 2
        new = {*threading.enumerate()} - others
        assert [thread.name for thread in new].count("preemption") == 1


PROGRAM = """
import sys, time
from contextlib import ExitStack
from tfdist.coordination.preemption import Preemption

preemption = Preemption()
preemption.listen()
with ExitStack() as stack:
    if sys.argv[1] == "serving":
        stack.enter_context(preemption.serving())
    if sys.argv[1] == "watched":
        stack.enter_context(preemption.watched("worker:0", ["worker:0"]))
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("block", "signals"), [("none", 1), ("serving", 2), ("watched", 2)])
def test_a_second_signal_or_one_outside_of_training_exits_immediately(
    block: str, signals: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, block],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        if signals == 2:
            process.send_signal(signal.SIGTERM)
            assert "saving and exiting" in process.stderr.readline()
            assert process.poll() is None
            # A signal to a process and its launcher arrives twice, but counts only once.
            process.send_signal(signal.SIGTERM)
            time.sleep(1.1)
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM


def test_the_exit_code_is_distinct() -> None:
    assert EXIT_PREEMPTED not in (0, 1, 2) and EXIT_PREEMPTED < 128
