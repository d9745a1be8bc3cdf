"""The chief's side of the startup barrier: it collects the reports and sends the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tfdist.cluster import Task, host_and_port
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.channel import Channel
from tfdist.coordination.startup.participant import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    Participant,
    read,
)
from tfdist.coordination.startup.peers import Peer
from tfdist.coordination.startup.protocol import Hello, Report, Status, Verdict
from tfdist.coordination.startup.verdicts import reasons

# A task whose process is alive reports within this time.
_SUPERSEDED_SECONDS = 3.0


@dataclass(eq=False)
class _Session:
    """The connection on which a process of a task reports."""

    hello: Hello
    channel: Channel
    report: Report
    conversation: asyncio.Task[None]


class Chief(Participant):
    """The chief at the startup barrier.

    The barrier opens when the chief reaches every task, and every task reports that it reaches its
    peers. A process that reports for a task supersedes an older process of the same task; if the
    older one reports once more, the task was started twice.
    """

    def start_role(self) -> None:
        self._sessions: dict[Task, _Session] = {}
        self._superseded: set[_Session] = set()
        self._has_given_up = False
        self.start(self._send_status())
        # Another process that is configured as the chief may listen at the chief's address.
        task = self.me.task
        me = Peer(task, *host_and_port(self.me.cluster.address(task)))
        self.start(self.try_to_reach(me))

    async def converse(self, hello: Hello, channel: Channel) -> None:
        session = None
        try:
            while isinstance(report := await read(channel), Report):
                is_news = session is None or session.report.complete != report.complete
                self._has_given_up = self._has_given_up or report.gives_up
                if session is None:
                    session = self._open(hello, channel, report)
                session.report = report
                newer = self._sessions.get(hello.task, session).hello
                if newer.incarnation != hello.incarnation:
                    self.table.twice.setdefault(hello.task, (hello, newer))
                    is_news = True
                if is_news or report.gives_up:
                    self.has_changed()
        finally:
            if session is not None:
                self._drop(session)

    def look(self) -> Verdict | None:
        if self._has_given_up:
            return self.failure()
        if self.table.contradiction():
            return self.contradiction()
        # Looks at no more tasks than it must: each change in a large job leads here.
        is_awaiting = any(True for _ in self._awaited())
        return None if is_awaiting or self._superseded else Verdict("")

    def waiting(self) -> str:
        return reasons(self.findings(), list(self._awaited()))

    def reports(self) -> dict[Task, Report]:
        return {task: session.report for task, session in self._sessions.items()}

    async def finish(self, verdict: Verdict) -> None:
        sessions = [*self._sessions.values(), *self._superseded]
        for session in sessions:
            with contextlib.suppress(OSError):  # The connection is lost.
                session.channel.send(verdict)
                session.channel.writer.write_eof()
        # Closing at once could drop what was written.
        if sessions:
            await asyncio.wait(
                [session.conversation for session in sessions], timeout=CLOSE_SECONDS
            )

    def _open(self, hello: Hello, channel: Channel, report: Report) -> _Session:
        conversation = asyncio.current_task()
        assert conversation is not None
        session = _Session(hello, channel, report, conversation)
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
        self.has_changed()

    def _forget_reach(self, task: Task) -> None:
        peer = self.table.peers.get(task)
        if peer is not None and peer.is_reached:
            peer.reach = protocol.Reach(protocol.NOT_TRIED)
            peer.wake.set()

    def _awaited(self) -> Iterator[Task]:
        """The tasks that the barrier still waits for."""
        least = self.table.min_workers
        if least is None:
            yield from filter(self._is_awaited, self.table.peers)
            return
        there, away = 0, []
        for task in self.table.peers:
            is_awaited, may_be_away = self._is_awaited(task), self.table.may_be_away(task)
            there += may_be_away and not is_awaited
            if is_awaited and not may_be_away:
                yield task
            elif is_awaited:
                away.append(task)
        if there < least:
            yield from away

    def _is_awaited(self, task: Task) -> bool:
        peer, session = self.table.peers[task], self._sessions.get(task)
        is_complete = session is not None and session.report.complete
        # A task that is training already does not report.
        return not self.table.reaches(peer) or (peer.is_reached and not is_complete)

    async def _send_status(self) -> None:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        while True:
            status = Status(self.waiting())
            for session in self._sessions.values():
                session.channel.send(status)
            await asyncio.sleep(HEARTBEAT_SECONDS)
