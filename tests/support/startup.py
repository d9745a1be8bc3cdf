"""Tasks at the startup barrier: real ones, and fake ones that a test controls."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.coordination.seal import new_nonce, seals
from tfdist.coordination.startup import BarrierConfig, Outcome, protocol, wait_at_barrier
from tfdist.coordination.startup.protocol import Challenge, Hello, Proof, decode, encode

CHIEF, W0, W1, W2, PS = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("worker", 2),
    Task("ps", 0),
)
A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
CLUSTER = Cluster(worker=(A, B, C))
# The first bytes from an HTTP/2 server, such as TensorFlow's.
SETTINGS = bytes.fromhex("000018040000000000000400400000000500400000")


def workers(ports: Sequence[int]) -> Cluster:
    return Cluster(worker=tuple(f"127.0.0.1:{port}" for port in ports))


def config(cluster: Cluster, task: Task, **changes: Any) -> BarrierConfig:
    own = {
        name: changes.pop(name)
        for name in ("token", "joins", "min_workers", "timeout")
        if name in changes
    }
    me = {"strategy": "multi_worker_mirrored", "versions": {"python": "3"}, **changes}
    return BarrierConfig(Hello(cluster=cluster, task=task, **me), **{"timeout": 20.0, **own})


class Participants:
    """Runs tasks that wait at the startup barrier, each in a thread."""

    def __init__(self) -> None:
        self.lines: dict[Task, list[str]] = {}
        self._results: list[Outcome | BaseException | None] = []
        self._threads: list[threading.Thread] = []

    def start(self, one: BarrierConfig) -> None:
        place = len(self._results)
        self._results.append(None)
        lines = self.lines.setdefault(one.me.task, [])

        def run() -> None:
            try:
                self._results[place] = wait_at_barrier(one, log=lines.append)
            except BaseException as error:
                self._results[place] = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def outcomes(self) -> list[Outcome]:
        """The outcome of each task, in the order in which they were started."""
        for thread in self._threads:
            thread.join(timeout=45)
            assert not thread.is_alive(), "the barrier should end"
        found = []
        for result in self._results:
            assert isinstance(result, Outcome), repr(result)
            found.append(result)
        return found


def outcomes_of(*configs: BarrierConfig) -> list[Outcome]:
    participants = Participants()
    for one in configs:
        participants.start(one)
    return participants.outcomes()


def hello(cluster: Cluster, task: Task, **changes: Any) -> Hello:
    """The hello of a task with the default config."""
    defaults: dict[str, Any] = {
        "purpose": "training",
        "incarnation": f"some {task}",
        "host": f"host-of-{task.type}-{task.index}",
        "pid": 7,
        "strategy": "multi_worker_mirrored",
        "versions": {"python": "3"},
    }
    return Hello(cluster=cluster, task=task, **{**defaults, **changes})


class FakeChannel:
    """A fake task's end of a connection to a task; a test controls it.

    Args:
      connection: the connection.
      token: the token of the job, as the fake task has it.
      asks: whether the fake task has connected to the other one.

    Attributes:
      challenge: the first line that it has sent.
      sent: the lines that it has sent after that.
    """

    def __init__(self, connection: socket.socket, token: str = "", *, asks: bool) -> None:
        self.socket = connection
        self.file = connection.makefile("rb")
        own = Challenge(new_nonce())
        self.challenge = encode(own)
        self.sent: list[bytes] = []
        if asks:
            connection.sendall(self.challenge)
        line = self.file.readline()
        other = decode(line)
        # The probe of another task, which has given up.
        if not isinstance(other, Challenge):
            raise ConnectionResetError(line)
        asking, answering = (own, other) if asks else (other, own)
        both = seals(token, asking=asking.nonce, answering=answering.nonce)
        self._ours, self._theirs = both if asks else reversed(both)
        if asks:
            assert self.receive() == Proof()
        else:
            connection.sendall(self.challenge)
            self.send(Proof())

    def send(self, message: protocol.Message) -> None:
        self.sent.append(self._ours.seal(encode(message)))
        self.socket.sendall(self.sent[-1])

    def receive(
        self, cluster: Cluster | None = None
    ) -> protocol.Message | protocol.OtherCluster | None:
        return decode(self._theirs.open(self.file.readline()) or b"", cluster)


class FakeTask(FakeChannel):
    """A connection from a fake task that the test controls."""

    def __init__(self, cluster: Cluster, to: Task, greeting: Hello, token: str = "") -> None:
        super().__init__(dial(cluster.address(to)), token, asks=True)
        self.send(greeting)
        answer = self.receive(cluster)
        assert isinstance(answer, Hello)
        self.answer = answer

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def dial(address: str) -> socket.socket:
    """Connects to an address; waits until something listens there."""
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(host_and_port(address), timeout=15)
        except OSError:
            assert time.monotonic() < until, f"nothing listens at {address}"
            time.sleep(0.01)


@contextlib.contextmanager
def server(address: str, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listens at an address and handles each connection with `answer`."""
    with socket.create_server(host_and_port(address)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=handle, args=[connection], daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield
        finally:
            # `close` alone would not wake the thread that is in `accept`.
            listener.shutdown(socket.SHUT_RDWR)


def sends(data: bytes) -> Callable[[socket.socket], None]:
    """A handler for `server` that sends `data` and then waits for the peer to close."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(4096):
            pass

    return answer
