"""The side of every task but the chief: it reports to the chief and waits for the verdict."""

from __future__ import annotations

import asyncio
import contextlib

from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.connection import Connection
from tfdist.coordination.startup.participant import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    Participant,
    read,
    wait_for,
)
from tfdist.coordination.startup.peers import Peer
from tfdist.coordination.startup.protocol import Hello, Status, Verdict
from tfdist.coordination.startup.verdicts import Findings, matrix, reasons


class Member(Participant):
    """A task that is not the chief, at the startup barrier.

    Without a connection to the chief it decides by itself: that the job is training already, so
    that it can join; that the tasks contradict each other; or that the timeout has passed.
    """

    def start_role(self) -> None:
        self._chief: Connection | None = None
        self._is_complete = False
        self._changed = asyncio.Event()
        self._waits_for = ""

    async def after_reaching(self, peer: Peer, connection: Connection) -> None:
        if peer.task != self.config.cluster.chief_task:
            return
        self._chief, self._waits_for = connection, ""
        sending = self.start(self._send_reports(connection))
        try:
            while True:
                message = await read(connection)
                if isinstance(message, Verdict):
                    self.end(message)
                if not isinstance(message, Status):
                    break
                self._waits_for = message.waiting
        finally:
            sending.cancel()
            self._chief = None
            peer.reach = protocol.Reach(protocol.NOT_TRIED)
            self.has_changed()

    async def converse(self, hello: Hello, connection: Connection) -> None:
        """Another task has tried to reach this one: the handshake is all that it needs."""

    def look(self) -> None:
        if self.table.reaches_all() != self._is_complete:
            self._is_complete = not self._is_complete
            self._changed.set()
        if self.has_ended() or not self.decides():
            return
        if self.table.contradiction():
            self.end_in_contradiction()
        elif self.table.reaches_all() and not self._is_chief_starting():
            self.end(Verdict("", matrix(self.findings()), self.warnings()))

    def decides(self) -> bool:
        return self._chief is None

    def waiting(self) -> str:
        awaited = [task for task, peer in self.table.peers.items() if not self.table.reaches(peer)]
        if awaited:
            return reasons(self.findings(), awaited)
        return self._waits_for or str(self.config.cluster.chief_task)

    def findings(self) -> Findings:
        return Findings(
            cluster=self.config.cluster,
            task=self.config.task,
            reports={self.config.task: self.table.report()},
            hellos=self.table.hellos,
            connected=frozenset([self.config.cluster.chief_task] if self._chief else []),
        )

    async def give_up(self) -> Verdict:
        """Lets the chief end the barrier for all; it knows more about the other tasks."""
        if self._chief is not None:
            report = protocol.Report(self.table.report().reach, gives_up=True)
            with contextlib.suppress(OSError, TimeoutError):
                self._chief.channel.send(report)
                async with asyncio.timeout(CLOSE_SECONDS):
                    return await asyncio.shield(self._verdict)
        return self.judge()

    def _is_chief_starting(self) -> bool:
        return self.table.peers[self.config.cluster.chief_task].is_reached

    async def _send_reports(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):  # The end of the connection is seen elsewhere.
            while True:
                self._changed.clear()
                connection.channel.send(self.table.report())
                await connection.channel.writer.drain()
                await wait_for(self._changed, HEARTBEAT_SECONDS)
