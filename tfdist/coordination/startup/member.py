"""The other tasks' side of the startup barrier: they report to the chief and await the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from tfdist.cluster import Task
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.channel import Channel
from tfdist.coordination.startup.participant import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    Participant,
    read,
    wait_for,
)
from tfdist.coordination.startup.peers import Peer
from tfdist.coordination.startup.protocol import Report, Status, Verdict
from tfdist.coordination.startup.verdicts import reasons


class Member(Participant):
    """A task that is not the chief, at the startup barrier.

    Without a connection to the chief it decides by itself: that the job is training already, so
    that it can join; that the tasks contradict each other; or that the timeout has passed.
    """

    def start_role(self) -> None:
        self._chief: Channel | None = None
        self._verdict_of_chief: Verdict | None = None
        self._is_complete = self._gives_up = False
        self._has_news = asyncio.Event()
        self._waits_for = ""

    async def after_reaching(self, peer: Peer, channel: Channel) -> None:
        if peer.task != self.me.cluster.chief_task:
            return
        self._chief, self._waits_for = channel, ""
        sending = self.start(self._send_reports(channel))
        try:
            while True:
                message = await read(channel)
                if isinstance(message, Verdict):
                    self._verdict_of_chief = message
                if not isinstance(message, Status):
                    break
                self._waits_for = message.waiting
        finally:
            sending.cancel()
            self._chief = None
            peer.reach = protocol.Reach(protocol.NOT_TRIED)
            self.has_changed()

    def look(self) -> Verdict | None:
        if self.table.reaches_all() != self._is_complete:
            self._is_complete = not self._is_complete
            self._has_news.set()
        if self._verdict_of_chief or self._chief:
            return self._verdict_of_chief
        if self.table.contradiction():
            return self.contradiction()
        # A chief that is at the barrier sends the verdict.
        is_chief_starting = self.table.peers[self.me.cluster.chief_task].is_reached
        return None if is_chief_starting or not self._is_complete else Verdict("")

    def waiting(self) -> str:
        awaited = [task for task, peer in self.table.peers.items() if not self.table.reaches(peer)]
        if awaited:
            return reasons(self.findings(), awaited)
        return self._waits_for or str(self.me.cluster.chief_task)

    def reports(self) -> dict[Task, Report]:
        # The chief sends no report. An open connection to it shows that it runs.
        return {self.me.cluster.chief_task: Report()} if self._chief else {}

    async def give_up(self) -> Verdict:
        """Lets the chief end the barrier for all; it knows more about the other tasks."""
        self._gives_up = True
        self._has_news.set()
        if self._chief is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    return await self.verdict()
        return self.failure()

    async def _send_reports(self, channel: Channel) -> None:
        with contextlib.suppress(OSError):  # The end of the connection is seen elsewhere.
            while True:
                self._has_news.clear()
                report = replace(self.table.report(), gives_up=self._gives_up)
                channel.send(report)
                await channel.writer.drain()
                await wait_for(self._has_news, HEARTBEAT_SECONDS)
