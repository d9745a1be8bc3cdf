"""The startup barrier: returns when each task of a job reaches every other one, or says why not.

    config = BarrierConfig(cluster=cluster, task=task, strategy="parameter_server", timeout=300)
    outcome = wait_at_barrier(config)
    if outcome.verdict:
        sys.exit(str(outcome))

Each task listens on its own port and connects to all others. When it has reached every peer, it
sends each a notice ("complete"), which is acknowledged. A task exits the barrier only after every
peer has acknowledged its notice and has sent one; the others then exit too, and TensorFlow has the
port. A contradiction between tasks ends the barrier for all of them; a task that is not reached is
tried again until the timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import addresses, protocol
from tfdist.coordination.startup.conflicts import are_of_one_job, clocks
from tfdist.coordination.startup.connection import PATIENCE, Contact, contact
from tfdist.coordination.startup.peers import Peer, PeerTable
from tfdist.coordination.startup.protocol import LIMIT, Hello, Reach, Row, Verdict, decode, encode
from tfdist.coordination.startup.report import explain, matrix, waiting
from tfdist.errors import log

#: The environment variable that keeps jobs apart which may hear of each other.
TOKEN_VARIABLE = "TFDIST_JOB_TOKEN"

# All in seconds. Between two visits to a task that was not met, at first and at last; a task that
# starts visits the others at once, and they answer its visit at once.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0
# Between two messages on a connection; an older process of a task that is still alive speaks
# within this time, and is dead after the other.
_HEARTBEAT, _SILENCE = 1.0, 3.0
# For tasks that were not heard of to come, so that they are told of a contradiction as well and
# may show who is in the minority.
_GRACE = 5.0
# For all that contradicts itself to come out, once all were heard of.
_SETTLING = 0.5
# For the others to close their side.
_PARTING = 2.0
# Until it is said whom this task waits for, at first and from then on.
_FIRST_NOTICE, _NOTICE = 5.0, 30.0


@dataclass(frozen=True, kw_only=True)
class BarrierConfig:
    """Configuration of one participant in the startup barrier.

    Attributes:
      cluster: the tasks that wait for each other.
      task: this one.
      strategy: the strategy that the job trains under.
      timeout: seconds that the tasks wait at most.
      purpose: `training`, or `check`; it must be the same in all tasks.
      token: the job's; it must be the same in all tasks.
      joins: whether a job that is under way can be joined by this task.
      versions: those of the packages that all tasks must share.
    """

    cluster: Cluster
    task: Task
    strategy: str
    timeout: float
    purpose: str = "training"
    token: str = ""
    joins: bool = False
    versions: dict[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """The result: why it failed (empty if it did not), which task reaches which, and seconds."""

    verdict: str
    matrix: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.matrix}" if self.verdict else self.matrix


def wait_at_barrier(
    config: BarrierConfig,
    *,
    say: Callable[[str], None] = log,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Waits at the startup barrier; returns when all tasks are there, or cannot all come.

    Args:
      config: this task, and what it expects.
      say: logs lines about the tasks that this one waits for; by default to stderr.
      clock: the wall clock, in seconds since the epoch.

    Raises:
      UsageError: this task's port cannot be bound.
    """
    with addresses.open_port(config.cluster, config.task) as listener:
        return asyncio.run(_Barrier(config, say, clock).run(listener))


class _Barrier:
    def __init__(
        self, config: BarrierConfig, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._say = say
        self._clock = clock
        me = Hello(
            token=hashlib.sha256(config.token.encode()).hexdigest()[:16],
            purpose=config.purpose,
            task=config.task,
            incarnation=secrets.token_hex(8),
            host=socket.gethostname(),
            pid=os.getpid(),
            cluster=config.cluster,
            strategy=config.strategy,
            versions=protocol.versions(config.strategy)
            if config.versions is None
            else config.versions,
            clock=0.0,
        )
        self._table = PeerTable(me, joins=config.joins)
        self._is_leaving = False
        self._grace: asyncio.TimerHandle | None = None
        # What is open, to whomever.
        self._writers: set[asyncio.StreamWriter] = set()
        self._all_closed = asyncio.Event()
        self._resolver = ThreadPoolExecutor(max_workers=32)

    async def run(self, listener: socket.socket) -> Outcome:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._ended: asyncio.Future[str] = loop.create_future()
        server = await asyncio.start_server(self._receive, sock=listener, limit=LIMIT)
        peers = self._table.peers.values()
        running = [self._started(self._visit(peer)) for peer in peers]
        running.append(self._started(self._give_notice(begin)))
        self._look()
        try:
            async with asyncio.timeout(self._config.timeout):
                verdict = await self._ended
        except TimeoutError:
            verdict = self._table.contradiction() or explain(self._table.found())
        outcome = Outcome(verdict, matrix(self._table.found()), loop.time() - begin)
        for sentence in clocks(self._table.clocks()):
            self._say(f"warning: {sentence}")
        server.close()
        await self._leave(verdict, running)
        return outcome

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def pass_on(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) and not self._ended.done():
                self._ended.set_exception(error)

        task = asyncio.create_task(work)
        task.add_done_callback(pass_on)
        return task

    # The visits of this task to the others.

    async def _visit(self, peer: Peer) -> None:
        pause = _FIRST_PAUSE
        while not self._is_leaving:
            peer.visit.clear()
            begin = self._clock()
            found = await contact(
                peer.host, peer.port, self._introduction(), resolver=self._resolver
            )
            if isinstance(found, Contact):
                peer.ahead = found.hello.clock - (begin + self._clock()) / 2
                reach = await self._converse(peer, found)
                pause = _FIRST_PAUSE
            else:
                reach = found
                self._table.misplaced.pop(peer.task, None)
            if not peer.is_settled:
                peer.reach = reach
            self._look()
            await _set_within(peer.visit, None if peer.is_settled else pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _converse(self, peer: Peer, found: Contact) -> Reach:
        """Talks for as long as the connection holds, if it is with the task that was looked for."""
        hello = found.hello
        self._writers.add(found.writer)
        teller = None
        try:
            me = self._table.me
            if hello.purpose != me.purpose:
                return Reach(protocol.CHECKING, hello.place)
            if not are_of_one_job(me, hello):
                return Reach(protocol.OTHER_JOB, f"{hello.task} {hello.place}")
            if hello.task != peer.task:
                self._table.misplaced[peer.task] = hello
                other = self._table.peers.get(hello.task)
                if other is not None and other.hello is None:
                    other.hello = hello
                return Reach(protocol.OTHER_TASK, str(hello.task))
            self._table.misplaced.pop(peer.task, None)
            peer.reach = Reach(protocol.REACHED)
            teller = self._started(self._tell(peer, found.writer))
            await self._listen(peer, hello, found.reader, found.writer, incoming=False)
            return Reach(protocol.NOT_TRIED)
        finally:
            if teller is not None:
                teller.cancel()
            self._close(found.writer)

    async def _tell(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._is_leaving:
                if not self._table.is_complete:
                    await _set_within(peer.tell, _HEARTBEAT)
                peer.tell.clear()
                if self._is_leaving:
                    return
                writer.write(encode(self._table.row()))
                await writer.drain()
                if self._table.is_complete:
                    await _set_within(peer.tell, _HEARTBEAT)
        except OSError:
            pass  # `_listen` sees the end of the connection as well.

    # The visits of the others.

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            async with asyncio.timeout(PATIENCE):
                hello = decode(await reader.readline())
            if not isinstance(hello, Hello) or self._is_leaving:
                return
            # Also to a stranger who asks like one of us, so that it can tell whom it has found.
            writer.write(self._introduction())
            me = self._table.me
            if hello.purpose != me.purpose or not are_of_one_job(me, hello):
                return
            if hello.task == me.task:
                # An address of another task may lead back here, which `_visit` finds.
                if hello.incarnation != me.incarnation:
                    self._table.twice[hello.task] = (me, hello)
                    self._look()
            else:
                peer = self._table.peer_of(hello)
                await self._listen(peer, hello, reader, writer, incoming=True)
        except (OSError, ValueError):
            pass  # Silence, an endless line, or the end: nobody of this job. (TimeoutError too.)
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
        finally:
            self._close(writer)

    async def _listen(
        self,
        peer: Peer,
        hello: Hello,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        incoming: bool,
    ) -> None:
        """Hears what the task says on a connection, until that ends."""
        peer.connections[writer] = hello.incarnation
        peer.incoming += incoming
        older = self._table.remember(peer, hello, incoming=incoming)
        asyncio.get_running_loop().call_later(_SILENCE, _abort, older)
        if incoming and peer.reach.kind != protocol.REACHED:
            peer.visit.set()
        self._look()
        try:
            while line := await reader.readline():
                message = decode(line)
                if isinstance(message, Verdict):
                    self._end(message.text)
                elif isinstance(message, Row):
                    self._table.note(peer, hello, message, incoming=incoming)
                    if incoming and not self._is_leaving:
                        writer.write(encode(self._table.row(noted=peer.complete)))
                else:
                    return
                self._look()
        except (OSError, ValueError):
            pass
        finally:
            del peer.connections[writer]
            peer.incoming -= incoming
            self._look()

    # What follows from it.

    def _look(self) -> None:
        """Draws the conclusions; called whenever something has changed."""
        if self._ended.done():
            return
        contradiction = self._table.contradiction()
        is_complete = contradiction is None and self._table.reaches_all()
        if is_complete != self._table.is_complete:
            self._table.is_complete = is_complete
            self._tell_all()
        if contradiction is not None:
            self._end_within(_SETTLING if self._table.has_heard_all() else _GRACE)
        elif self._table.is_over():
            self._end("")

    def _end(self, verdict: str) -> None:
        if not self._ended.done():
            self._ended.set_result(verdict)

    def _end_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._grace is None:
            self._tell_all()
        elif self._grace.when() <= loop.time() + seconds:
            return
        else:
            self._grace.cancel()
        self._grace = loop.call_later(seconds, self._end_in_contradiction)

    def _end_in_contradiction(self) -> None:
        self._grace = None
        if contradiction := self._table.contradiction():
            self._end(contradiction)

    def _tell_all(self) -> None:
        for peer in self._table.peers.values():
            peer.tell.set()

    def _introduction(self) -> bytes:
        return encode(replace(self._table.me, clock=self._clock()))

    async def _give_notice(self, begin: float) -> None:
        pause = _FIRST_NOTICE
        while True:
            await asyncio.sleep(pause)
            pause = _NOTICE
            left = self._config.timeout - (asyncio.get_running_loop().time() - begin)
            why = waiting(self._table.found(), self._table.awaited())
            task = self._table.me.task
            self._say(f"{task} waits for {why}; for {left:.0f} s more")

    # The end.

    async def _leave(self, verdict: str, running: list[asyncio.Task[None]]) -> None:
        """Tells the others the verdict, and lets what was said arrive before all is closed."""
        self._is_leaving = True
        attendance = self._table
        for peer in attendance.peers.values():
            peer.tell.set()
            peer.visit.set()
        told = set()
        for peer in (*attendance.peers.values(), *attendance.unexpected.values()):
            for writer in peer.connections:
                told.add(writer)
                with contextlib.suppress(OSError):  # The connection is lost.
                    writer.write(encode(Verdict(verdict)))
                    writer.write_eof()
        _abort(self._writers - told)
        if self._writers:
            self._all_closed.clear()
            await _set_within(self._all_closed, _PARTING)
            _abort(self._writers)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._resolver.shutdown(wait=False, cancel_futures=True)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._writers.discard(writer)
        if not self._writers:
            self._all_closed.set()


async def _set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Returns when the event is set, or after that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _abort(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in list(writers):
        writer.transport.abort()
