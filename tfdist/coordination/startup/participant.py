"""What every task does at the startup barrier: it listens on its port and connects to its peers.

`chief.Chief` and `member.Member` add the two ends of the reports to the chief.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Task, host_and_port
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.addresses import BACKLOG
from tfdist.coordination.startup.channel import Channel, accept_channel
from tfdist.coordination.startup.connection import connect, read_hello
from tfdist.coordination.startup.origins import Origins
from tfdist.coordination.startup.peers import Peer, PeerTable
from tfdist.coordination.startup.protocol import (
    LIMIT,
    Hello,
    OtherCluster,
    Reach,
    Report,
    Verdict,
    decode,
)
from tfdist.coordination.startup.verdicts import Findings, details, explain

# All in seconds. The first and the longest interval between two attempts to reach a peer. A task
# that starts connects to its peers immediately, and they connect to it.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0
# Between two attempts to reach any peer, on average: the chief of a large job has many.
_PACE_SECONDS = 0.5e-3
# That a connection may take, and then the answer on it: this, and more for each task of the job.
_HANDSHAKE_SECONDS, _HANDSHAKE_SECONDS_PER_TASK = 5.0, 5e-3
#: Between two messages on a connection; without one for `LOST_SECONDS` the connection is dropped.
HEARTBEAT_SECONDS, LOST_SECONDS = 1.0, 15.0
#: For the other side to answer or to close its connection, at the end.
CLOSE_SECONDS = 2.0
# After a contradiction, for more tasks to start: they receive the verdict too, and show which tasks
# are in the minority. Once all tasks have started, for all contradictions to appear.
_GRACE_SECONDS, _SETTLE_SECONDS = 5.0, 0.5
# Between two looks for whether that time has passed.
_LOOK_SECONDS = 0.25
# Until the log names the tasks that this one waits for, at first and from then on.
_FIRST_NOTICE, _NOTICE = 5.0, 30.0


@dataclass(frozen=True)
class BarrierConfig:
    """Configuration of one participant in the startup barrier.

    Attributes:
      me: this task, and what must be the same in all tasks.
      timeout: the longest wait, in seconds.
      token: the job's token; it must be the same in all tasks. Without one, only the addresses of
        the cluster are listened to.
      joins: whether this task can join a job that is training already.
      min_workers: how many workers must be there; None for all.
    """

    me: Hello
    timeout: float
    token: str = ""
    joins: bool = False
    min_workers: int | None = None


class Participant(ABC):
    """One task at the startup barrier.

    Args:
      config: this task, and what it expects.
      log: logs a line.
    """

    def __init__(self, config: BarrierConfig, log: Callable[[str], None]) -> None:
        self.config = config
        self.me = config.me
        self.log = log
        self.table = PeerTable(self.me, joins=config.joins, min_workers=config.min_workers)
        self._resolver = ThreadPoolExecutor(max_workers=32)
        self._origins = Origins(self.me.cluster, self._resolver, log)
        self._handshake_seconds = _HANDSHAKE_SECONDS + _HANDSHAKE_SECONDS_PER_TASK * len(
            self.table.peers
        )
        self._changed = asyncio.Event()
        self._has_ended = False
        self._ends_at = math.inf
        self._error: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._incoming: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def run(self, listener: socket.socket) -> Verdict:
        """Takes part in the barrier until it has a result.

        Args:
          listener: a socket that listens on this task's port; closed at the end.
        """
        server = await asyncio.start_server(self._receive, sock=listener, limit=LIMIT)
        # Asyncio has set its own backlog, and accepts so many connections at once.
        listener.listen(BACKLOG)
        for place, peer in enumerate(self.table.peers.values()):
            self.start(self.try_to_reach(peer, delay=place * _PACE_SECONDS))
        self.start(self._log_waiting())
        self.start_role()
        try:
            async with asyncio.timeout(self.config.timeout):
                verdict = await self.verdict()
        except TimeoutError:
            verdict = self.look() or await self.give_up()
        server.close()
        self._has_ended = True
        for task in self._running:
            task.cancel()
        await self.finish(verdict)
        for writer in self._incoming:
            writer.transport.abort()
        await asyncio.gather(
            *self._running, *filter(None, self._incoming.values()), return_exceptions=True
        )
        self._resolver.shutdown(wait=False, cancel_futures=True)
        return verdict

    # What a chief and a member do differently.

    @abstractmethod
    def start_role(self) -> None:
        """Starts what this kind of participant does in addition to connecting to its peers."""

    @abstractmethod
    def look(self) -> Verdict | None:
        """The result, if there is one; called soon after every change."""

    @abstractmethod
    def waiting(self) -> str:
        """The tasks that this one waits for, with reasons."""

    @abstractmethod
    def reports(self) -> dict[Task, Report]:
        """The last report of each task that is connected to this one."""

    async def after_reaching(self, peer: Peer, channel: Channel) -> None:
        """Uses the connection to a peer that was reached; it is closed afterwards."""
        return

    async def converse(self, hello: Hello, channel: Channel) -> None:
        """Uses a connection from a task of this job; it is closed afterwards."""
        return

    async def give_up(self) -> Verdict:
        """The result when the timeout has passed."""
        return self.failure()

    async def finish(self, verdict: Verdict) -> None:
        """Sends the result to those who wait for it."""
        return

    # What all share.

    def findings(self) -> Findings:
        """What is known at this moment."""
        reports = {self.me.task: self.table.report(), **self.reports()}
        return Findings(self.me.cluster, self.me.task, reports, self.table.hellos)

    def failure(self) -> Verdict:
        """The result of a failed barrier, from what is known now."""
        findings = self.findings()
        why = self.table.contradiction() or explain(findings)
        return Verdict(why, details(findings))

    def contradiction(self) -> Verdict | None:
        """The result if tasks contradict each other, after a grace period; until then None."""
        if self.table.contradiction() is None:
            self._ends_at = math.inf
            return None
        now = time.monotonic()
        wait = _SETTLE_SECONDS if self.table.has_all_hellos() else _GRACE_SECONDS
        self._ends_at = min(self._ends_at, now + wait)
        return self.failure() if now >= self._ends_at else None

    def has_changed(self) -> None:
        """Makes `verdict` look for a result soon; it looks once for changes that come together."""
        self._changed.set()

    async def verdict(self) -> Verdict:
        """Waits for the result."""
        while (verdict := self.look()) is None:
            await wait_for(self._changed, _LOOK_SECONDS)
            self._changed.clear()
            if self._error is not None:
                raise self._error
        return verdict

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a coroutine until the barrier ends; its exception ends the barrier."""

        def pass_on(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()):
                self._fail(error)

        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(pass_on)
        return task

    async def try_to_reach(self, peer: Peer, *, delay: float = 0.0) -> None:
        """Connects to a peer until it answers, and again after the connection is lost.

        Args:
          peer: the peer.
          delay: seconds until the first attempt, unless the peer connects to this task earlier.
        """
        await wait_for(peer.wake, delay)
        pace = _PACE_SECONDS * len(self.table.peers)
        pause = first = max(_FIRST_PAUSE, pace)
        while True:
            peer.wake.clear()
            found = await self._connect(peer)
            if isinstance(found, Reach):
                self.table.misplaced.pop(peer.task, None)
                peer.reach = found
                self.has_changed()
            else:
                channel, hello = found
                peer.reach = self.table.identify(peer, hello)
                self.has_changed()
                try:
                    if peer.is_reached:
                        peer.wake.clear()  # It has connected to this task meanwhile.
                        pause = first
                        await self.after_reaching(peer, channel)
                finally:
                    channel.writer.close()
            await wait_for(peer.wake, None if peer.is_reached else pause)
            pause = min(2 * pause, max(_LAST_PAUSE, pace))

    async def _connect(self, peer: Peer) -> tuple[Channel, Hello] | Reach:
        return await connect(
            peer.host,
            peer.port,
            self.me,
            self.config.token,
            resolver=self._resolver,
            timeout=self._handshake_seconds,
        )

    async def ask_at_own_address(self) -> str | None:
        """The contradiction with another task of this job at this task's own address, or None."""
        own = self.me.task
        peer = Peer(own, *host_and_port(self.me.cluster.address(own)))
        found = await self._connect(peer)
        if not isinstance(found, Reach):
            channel, hello = found
            self.table.identify(peer, hello)
            channel.writer.close()
        return self.table.contradiction()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._incoming[writer] = asyncio.current_task()
        try:
            cluster = self.me.cluster
            async with asyncio.timeout(self._handshake_seconds):
                channel = await accept_channel(reader, writer, self.config.token)
                if channel is None or self._has_ended:
                    return
                line = await channel.receive_line()
                message = decode(line, cluster)
                if not isinstance(message, Hello | OtherCluster):
                    return
                if not self.config.token and not await self._origins.admits(
                    writer.get_extra_info("peername"), message
                ):
                    return
                # A task of another job receives it as well, so that it can tell what it has found.
                channel.send(self.me)
                hello = await read_hello(line, channel, cluster)
            if hello is None or not self.table.is_of_this_job(hello):
                return
            self.table.receive(hello)
            peer = self.table.peers.get(hello.task)
            if peer is not None and not peer.is_reached:
                peer.wake.set()
            self.has_changed()
            await self.converse(hello, channel)
        except (OSError, ValueError):
            pass  # Silence (TimeoutError is an OSError), an endless line, or the end.
        except Exception as error:
            self._fail(error)
        finally:
            writer.close()
            del self._incoming[writer]

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self.has_changed()

    async def _log_waiting(self) -> None:
        begin, pause = time.monotonic(), _FIRST_NOTICE
        while True:
            await asyncio.sleep(pause)
            pause = _NOTICE
            left = self.config.timeout - (time.monotonic() - begin)
            self.log(f"{self.me.task} waits for {self.waiting()}; it gives up in {left:.0f} s")


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set, for at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def read(channel: Channel) -> protocol.Message | OtherCluster | None:
    """The next message on a connection; None at its end, or for anything that is no message."""
    try:
        async with asyncio.timeout(LOST_SECONDS):
            return await channel.receive()
    except (OSError, ValueError):
        return None
