"""What a task knows about its peers while it waits at the startup barrier.

    table = PeerTable(hello, joins=False)
    older = table.remember(peer, hello, incoming=True)
    table.contradiction()         # why these tasks cannot make a job; None so far
    table.reaches_all()           # whether this task reaches all peers

Nothing here waits, or has a connection of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from tfdist.cluster import Task, host_and_port
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import find
from tfdist.coordination.startup.protocol import Hello, Reach, Row
from tfdist.coordination.startup.report import Found


@dataclass(eq=False)
class Peer:
    """Another task.

    Attributes:
      task: which one.
      host: where it is to be.
      port: the port there.
      reach: how far this task came with it.
      hello: what its newest process has said of itself.
      row: what that has said last of the others.
      complete: whether it has met everyone.
      noted: whether it knows that this task has.
      ahead: seconds that its clock is ahead of this one's.
      superseded: by incarnation, its older processes.
      connections: what is open between it and this task, with the incarnation at the other end.
      incoming: how many of these it has opened itself.
      visit: is set where there is a reason to visit it now.
      tell: is set where there is something to tell it now.
    """

    task: Task
    host: str
    port: int
    reach: Reach = field(default_factory=lambda: Reach(protocol.NOT_TRIED))
    hello: Hello | None = None
    row: Row | None = None
    complete: bool = False
    noted: bool = False
    ahead: float | None = None
    superseded: dict[str, Hello] = field(default_factory=dict)
    connections: dict[asyncio.StreamWriter, str] = field(default_factory=dict)
    incoming: int = 0
    visit: asyncio.Event = field(default_factory=asyncio.Event)
    tell: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_settled(self) -> bool:
        """Whether neither task waits for the other any longer."""
        return self.complete and self.noted

    @property
    def is_doubtful(self) -> bool:
        """Whether a connection to an older process is open, which may be dead or not."""
        return any(incarnation in self.superseded for incarnation in self.connections.values())


class PeerTable:
    """What this task knows about each peer.

    Attributes:
      me: what this task says of itself.
      peers: the other tasks of the cluster.
      unexpected: tasks of the job that the cluster, as this task has been told of it, lacks.
      misplaced: by a task, the task that answers at its address.
      twice: by a task, two of its processes that run at the same time.
      is_complete: whether this task reached all peers when it looked last.
    """

    def __init__(self, me: Hello, *, joins: bool) -> None:
        self.me = me
        self.peers = {
            task: Peer(task, *host_and_port(me.cluster.address(task)))
            for task in me.cluster.tasks()
            if task != me.task
        }
        self.unexpected: dict[Task, Peer] = {}
        self.misplaced: dict[Task, Hello] = {}
        self.twice: dict[Task, tuple[Hello, Hello]] = {}
        self.is_complete = False
        self._joins = joins

    # What is heard.

    def peer_of(self, hello: Hello) -> Peer:
        """The task that says this of itself."""
        address = hello.cluster.address(hello.task)
        return self.peers.get(hello.task) or self.unexpected.setdefault(
            hello.task, Peer(hello.task, *host_and_port(address))
        )

    def remember(self, peer: Peer, hello: Hello, *, incoming: bool) -> list[asyncio.StreamWriter]:
        """Takes note of a hello; returns the connections to a process that it supersedes.

        Args:
          peer: the task.
          hello: what it says of itself.
          incoming: whether it has come by itself, so that it may be another process than the one
            that this task has reached.
        """
        known = peer.hello
        if hello.cluster == self.me.cluster:
            # One object for all, which is equal to itself at a glance.
            hello = replace(hello, cluster=self.me.cluster)
        peer.hello = hello
        if known is None or known.incarnation == hello.incarnation:
            return []
        if hello.incarnation in peer.superseded:
            self.twice.setdefault(peer.task, (known, hello))
            return []
        # The task was started again; should the older process live, it will be heard again.
        peer.superseded[known.incarnation] = known
        peer.row, peer.complete, peer.noted = None, False, False
        if incoming:
            peer.reach = Reach(protocol.NOT_TRIED)
        return [writer for writer, of in peer.connections.items() if of == known.incarnation]

    def note(self, peer: Peer, hello: Hello, row: Row, *, incoming: bool) -> None:
        """Takes note of the row that a process of `peer`, known by its hello, has sent."""
        if hello.incarnation in peer.superseded and peer.hello is not None:
            self.twice.setdefault(peer.task, (hello, peer.hello))
            return
        peer.row = row
        if incoming:
            peer.complete = row.complete
        else:
            peer.noted = row.noted

    # What follows from it.

    def contradiction(self) -> str | None:
        """Why these tasks cannot make a job; None while nothing speaks against it."""
        hellos = self._hellos()
        if not self.misplaced and not self.twice and all(map(self._agrees, hellos.values())):
            return None
        return find(hellos, misplaced=self.misplaced, twice=self.twice)

    def has_heard_all(self) -> bool:
        """Whether each task was heard of that anyone has been told of."""
        hellos = self._hellos()
        return all(
            task in hellos
            for cluster in {hello.cluster for hello in hellos.values()}
            for task in cluster.tasks()
        )

    def reaches_all(self) -> bool:
        """Whether this task has met everyone.

        Of a task whose older process may live it is not known yet which one is to be met.
        """
        return all(self._is_met(peer) and not peer.is_doubtful for peer in self.peers.values())

    def is_over(self) -> bool:
        """Whether all have met, and nobody needs this task any more."""
        return self.is_complete and all(
            peer.is_settled or peer.reach.kind == protocol.RUNNING for peer in self.peers.values()
        )

    def awaited(self) -> list[Task]:
        """The tasks that keep this one waiting."""
        return [
            task
            for task, peer in self.peers.items()
            if not (self._is_met(peer) and (peer.is_settled or peer.hello is None))
        ]

    def row(self, noted: bool = False) -> Row:
        """What this task tells of the others; `noted` answers one that has said it is complete."""
        return Row(
            reach={task: peer.reach for task, peer in self.peers.items() if not self._is_met(peer)},
            heard=tuple(task for task, peer in self.peers.items() if peer.incoming),
            complete=self.is_complete,
            noted=noted,
        )

    def found(self) -> Found:
        """All that is known, for a report."""
        rows = {task: peer.row for task, peer in self.peers.items() if peer.row is not None}
        return Found(
            cluster=self.me.cluster,
            task=self.me.task,
            rows={self.me.task: self.row(), **rows},
            hellos=self._hellos(),
            present=frozenset(task for task, peer in self.peers.items() if peer.connections),
        )

    def clocks(self) -> dict[Task, float]:
        """Seconds that each task's clock is ahead of this one's."""
        ahead = {task: peer.ahead for task, peer in self.peers.items() if peer.ahead is not None}
        return {self.me.task: 0.0, **ahead}

    def _hellos(self) -> dict[Task, Hello]:
        peers = {**self.peers, **self.unexpected}
        heard = {task: peer.hello for task, peer in peers.items() if peer.hello is not None}
        return {self.me.task: self.me, **heard}

    def _agrees(self, hello: Hello) -> bool:
        mine = (self.me.cluster, self.me.strategy, self.me.versions)
        return (hello.cluster, hello.strategy, hello.versions) == mine

    def _is_met(self, peer: Peer) -> bool:
        return peer.reach.kind == protocol.REACHED or (
            peer.reach.kind == protocol.RUNNING and self._can_join()
        )

    def _can_join(self) -> bool:
        """Whether the job is under way: those run already without whom it could not have begun.

        One running task alone may be left over from an older job.
        """
        leader = self.me.cluster.chief_task
        needed = [peer for task, peer in self.peers.items() if task.type == "ps" or task == leader]
        return self._joins and all(peer.reach.kind == protocol.RUNNING for peer in needed)
