"""Asks another task what it does, and answers such questions.

    endpoint = Endpoint(token, hosts, report)     # in each task; `report` returns a TaskReport
    endpoint.port
    report = ask("10.0.0.2", port, token)         # in the task that collects them

A connection begins like those of the startup barrier: both sides prove that they know the job's
token. Then one line goes in each direction, with its code; see `tfdist.coordination.seal`. Without
a token, only the machines of the cluster are answered.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from io import BufferedReader

from tfdist.coordination.listening import listen
from tfdist.coordination.liveness.task_report import TaskReport
from tfdist.coordination.seal import NONCE_LENGTH, new_nonce, seals
from tfdist.coordination.startup.addresses import is_among, plain, resolve

_LIMIT = 1 << 20
_SECONDS = 5.0
# The connections that are answered at a time: a stranger must not be able to start many threads.
_CONNECTIONS = 8
_QUESTION, _PROOF = b"report\n", b"proof\n"
_PURPOSE = " for a report"


class Endpoint:
    """Answers tasks that ask for the report of this task, until the process ends.

    Args:
      token: the job's token.
      hosts: the hosts of the cluster, which are answered without a token.
      report: returns the report of this task.

    Attributes:
      port: where it listens.
    """

    def __init__(self, token: str, hosts: Iterable[str], report: Callable[[], TaskReport]) -> None:
        self._token = token
        self._hosts = frozenset(hosts)
        self._report = report
        self._free = threading.Semaphore(_CONNECTIONS)
        self._listener = listen()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="reports", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                connection, origin = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._answer, args=(connection, str(origin[0])), name="report", daemon=True
            ).start()

    def _answer(self, connection: socket.socket, origin: str) -> None:
        try:
            with suppress(OSError, ValueError), closing(connection):
                known = map(resolve, self._hosts)
                if self._token or is_among(plain(origin), frozenset().union(*known)):
                    connection.settimeout(_SECONDS)
                    self._converse(connection)
        finally:
            self._free.release()

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            asking, answering = _read_nonce(stream), new_nonce()
            theirs, ours = seals(self._token, asking=asking, answering=answering, purpose=_PURPOSE)
            connection.sendall(answering.encode() + b"\n" + ours.seal(_PROOF))
            if theirs.open(stream.readline(_LIMIT)) == _QUESTION:
                connection.sendall(ours.seal(self._report().encode()))


def ask(host: str, port: int, token: str) -> TaskReport:
    """The report of another task.

    Args:
      host: its host.
      port: the port of its endpoint.
      token: the job's token.

    Raises:
      OSError: the task does not answer.
      ValueError: it does not know the token, or its answer is no report.
    """
    with (
        socket.create_connection((host, port), timeout=_SECONDS) as connection,
        connection.makefile("rb") as stream,
    ):
        asking = new_nonce()
        connection.sendall(asking.encode() + b"\n")
        ours, theirs = seals(token, asking=asking, answering=_read_nonce(stream), purpose=_PURPOSE)
        if theirs.open(stream.readline(_LIMIT)) != _PROOF:
            raise ValueError(f"{host}:{port} does not know the token of this job")
        connection.sendall(ours.seal(_QUESTION))
        return TaskReport.decode(theirs.open(stream.readline(_LIMIT)) or b"")


def _read_nonce(stream: BufferedReader) -> str:
    line = stream.readline(NONCE_LENGTH + 2)
    if len(line) != NONCE_LENGTH + 1 or not line.endswith(b"\n"):
        raise ValueError("no nonce")
    return line[:-1].decode("ascii")
