"""The chief's side of the startup barrier: it collects the reports and sends the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from tfdist.cluster import Task, host_and_port
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.channel import Channel
from tfdist.coordination.startup.connection import Connection
from tfdist.coordination.startup.participant import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    Participant,
    read,
    wait_for,
)
from tfdist.coordination.startup.peers import Peer
from tfdist.coordination.startup.protocol import Hello, Report, Status, Verdict
from tfdist.coordination.startup.verdicts import Findings, matrix, reasons

# A task whose process is alive reports within this time.
_SUPERSEDED_SECONDS = 3.0


@dataclass(eq=False)
class _Session:
    """The connection on which a process of a task reports."""

    hello: Hello
    channel: Channel
    report: Report


class Chief(Participant):
    """The chief at the startup barrier.

    The barrier opens when the chief reaches every task, and every task reports that it reaches its
    peers. A process that reports for a task supersedes an older process of the same task; if the
    older one reports once more, the task was started twice.
    """

    def start_role(self) -> None:
        self._sessions: dict[Task, _Session] = {}
        self._superseded: set[_Session] = set()
        self._all_closed = asyncio.Event()
        self.start(self._send_status())
        # Another process that is configured as the chief may listen at the chief's address.
        task = self.config.task
        me = Peer(task, *host_and_port(self.config.cluster.address(task)))
        self.start(self.try_to_reach(me))

    async def converse(self, hello: Hello, connection: Connection) -> None:
        session = None
        try:
            while isinstance(report := await read(connection), Report):
                is_news = session is None or session.report.complete != report.complete
                if session is None:
                    session = self._open(hello, connection.channel, report)
                session.report = report
                newer = self._sessions.get(hello.task, session).hello
                if newer.incarnation != hello.incarnation:
                    self.table.twice.setdefault(hello.task, (hello, newer))
                    is_news = True
                if report.gives_up:
                    self.end(self.judge())
                if is_news:
                    self.has_changed()
        finally:
            if session is not None:
                self._drop(session)

    def look(self) -> None:
        if self.has_ended():
            return
        if self.table.contradiction():
            self.end_in_contradiction()
        elif self.table.reaches_all() and not self._awaited() and not self._superseded:
            self.end(Verdict("", matrix(self.findings()), self.warnings()))

    def waiting(self) -> str:
        return reasons(self.findings(), self._awaited())

    def findings(self) -> Findings:
        reports = {task: session.report for task, session in self._sessions.items()}
        return Findings(
            cluster=self.config.cluster,
            task=self.config.task,
            reports={self.config.task: self.table.report(), **reports},
            hellos=self.table.hellos,
            connected=frozenset(self._sessions),
        )

    async def finish(self, verdict: Verdict) -> None:
        for session in (*self._sessions.values(), *self._superseded):
            with contextlib.suppress(OSError):  # The connection is lost.
                session.channel.send(verdict)
                session.channel.writer.write_eof()
        # Closing at once could drop what was written.
        if self._sessions or self._superseded:
            self._all_closed.clear()
            await wait_for(self._all_closed, CLOSE_SECONDS)

    def _open(self, hello: Hello, channel: Channel, report: Report) -> _Session:
        session = _Session(hello, channel, report)
        older = self._sessions.get(hello.task)
        self._sessions[hello.task] = session
        if older is not None:
            self._superseded.add(older)
            same = older.hello.incarnation == hello.incarnation
            # A lost machine does not close its connections.
            asyncio.get_running_loop().call_later(
                0 if same else _SUPERSEDED_SECONDS, older.channel.writer.transport.abort
            )
            self._forget_reach(hello.task)
        return session

    def _drop(self, session: _Session) -> None:
        self._superseded.discard(session)
        if self._sessions.get(session.hello.task) is session:
            del self._sessions[session.hello.task]
            self._forget_reach(session.hello.task)
        if not self._sessions and not self._superseded:
            self._all_closed.set()
        self.has_changed()

    def _forget_reach(self, task: Task) -> None:
        peer = self.table.peers.get(task)
        if peer is not None and peer.is_reached:
            peer.reach = protocol.Reach(protocol.NOT_TRIED)
            peer.wake.set()

    def _awaited(self) -> list[Task]:
        """The tasks without which the barrier does not open."""
        return [
            task
            for task, peer in self.table.peers.items()
            if not self.table.reaches(peer)
            or (
                peer.is_reached
                and not (task in self._sessions and self._sessions[task].report.complete)
            )
        ]

    async def _send_status(self) -> None:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        # At the end, `finish` sends the last message of each session.
        while not self.has_ended():
            status = Status(self.waiting())
            for session in self._sessions.values():
                session.channel.send(status)
            await asyncio.sleep(HEARTBEAT_SECONDS)
