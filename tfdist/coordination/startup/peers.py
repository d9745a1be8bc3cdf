"""What a task knows about its peers while it waits at the startup barrier.

    table = PeerTable(hello, joins=False, min_workers=None)
    table.receive(hello_of_a_peer)
    peer.reach = table.identify(peer, hello_at_its_address)
    table.contradiction()         # why these tasks cannot train together; None so far
    table.reaches_all()           # whether this task reaches all peers that it must connect to

Nothing here waits, or has a connection of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import are_of_one_job, find
from tfdist.coordination.startup.protocol import Hello, Reach, Report

# The next tasks to which a task connects, so that the connections of the job grow with the tasks
# and not with their square. A ring all-reduce connects to the next task, too.
_NEIGHBORS = 32


@dataclass(eq=False)
class Peer:
    """Another task.

    Attributes:
      task: its name.
      host: the host of its address.
      port: the port of its address.
      reach: the outcome of the last attempt to reach it.
      wake: is set when there is a reason to try it now.
    """

    task: Task
    host: str
    port: int
    reach: Reach = field(default_factory=lambda: Reach(protocol.NOT_TRIED))
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_reached(self) -> bool:
        """Whether the task answers at its address, before it trains."""
        return self.reach.kind == protocol.REACHED


def peers_of(cluster: Cluster, task: Task) -> list[Task]:
    """The tasks that `task` must connect to: the chief, all ps, and the next ones in a ring.

    The chief must connect to all.
    """
    tasks = list(cluster.tasks())
    place = tasks.index(task)
    others = tasks[place + 1 :] + tasks[:place]
    near = others if task == cluster.chief_task else others[:_NEIGHBORS]
    far = others[len(near) :]
    return [*near, *(each for each in far if each.kind.serves or each == cluster.chief_task)]


class PeerTable:
    """What this task knows about its peers.

    Attributes:
      me: the hello of this task.
      peers: the tasks that this one must connect to.
      hellos: the last hello of each task, this one included.
      misplaced: by a task, the hello of another task that answers at its address.
      twice: by a task, two of its processes that run at the same time.
    """

    def __init__(self, me: Hello, *, joins: bool, min_workers: int | None) -> None:
        self.me = me
        self.peers = {
            task: Peer(task, *host_and_port(me.cluster.address(task)))
            for task in peers_of(me.cluster, me.task)
        }
        # A job can have thousands of peers, and each of them is looked at after each change.
        self._needed = [peer for task, peer in self.peers.items() if self._is_needed(task)]
        self.hellos: dict[Task, Hello] = {me.task: me}
        self.misplaced: dict[Task, Hello] = {}
        self.twice: dict[Task, tuple[Hello, Hello]] = {}
        self.min_workers = min_workers
        self._joins = joins
        self._disagreeing: set[Task] = set()

    def is_of_this_job(self, hello: Hello) -> bool:
        """Whether a hello is from a task of the same job, with the same purpose."""
        return hello.purpose == self.me.purpose and are_of_one_job(self.me, hello)

    def receive(self, hello: Hello) -> None:
        """Stores the hello of a task of this job.

        The addresses of two tasks may lead to the same process: a second process of this task is
        one with another incarnation.
        """
        if hello.task == self.me.task:
            if hello.incarnation != self.me.incarnation:
                self.twice[hello.task] = (self.me, hello)
            return
        self.hellos[hello.task] = hello
        mine = (self.me.cluster, self.me.strategy, self.me.versions)
        if (hello.cluster, hello.strategy, hello.versions) == mine:
            self._disagreeing.discard(hello.task)
        else:
            self._disagreeing.add(hello.task)

    def identify(self, peer: Peer, hello: Hello) -> Reach:
        """Compares the task that answers at a peer's address with the peer."""
        self.misplaced.pop(peer.task, None)
        if hello.purpose != self.me.purpose:
            return Reach(protocol.CHECKING, hello.place)
        if not self.is_of_this_job(hello):
            return Reach(protocol.OTHER_JOB, f"{hello.task} {hello.place}")
        self.receive(hello)
        if hello.task != peer.task:
            self.misplaced[peer.task] = hello
            return Reach(protocol.OTHER_TASK, str(hello.task))
        return Reach(protocol.REACHED)

    def contradiction(self) -> str | None:
        """Why these tasks cannot train together; None if nothing contradicts it so far."""
        if not (self.misplaced or self.twice or self._disagreeing):
            return None
        return find(self.hellos, misplaced=self.misplaced, twice=self.twice)

    def has_all_hellos(self) -> bool:
        """Whether every task of every cluster description has sent its hello."""
        clusters = {hello.cluster for hello in self.hellos.values()}
        return all(task in self.hellos for cluster in clusters for task in cluster.tasks())

    def reaches(self, peer: Peer) -> bool:
        """Whether this task can train with the peer, as far as their connection is concerned."""
        is_chief = self.me.task == self.me.cluster.chief_task
        if not is_chief and self.may_be_away(peer.task):
            return True
        if peer.is_reached or not self._can_join():
            return peer.is_reached
        # A service of its own is no TensorFlow server, and another worker may have been lost.
        is_other = not is_chief and not self._is_needed(peer.task)
        is_service = not peer.task.kind.in_tensorflow
        return peer.reach.kind == protocol.RUNNING or is_service or is_other

    def may_be_away(self, task: Task) -> bool:
        """Whether the job can begin without a task, if enough other workers are there."""
        is_worker = task.kind.trains and task != self.me.cluster.chief_task
        return self.min_workers is not None and is_worker

    def reaches_all(self) -> bool:
        """Whether this task reaches all peers that it must connect to."""
        return all(map(self.reaches, self.peers.values()))

    def report(self) -> Report:
        """What this task reports to the chief."""
        return Report(
            reach={task: peer.reach for task, peer in self.peers.items() if not self.reaches(peer)},
            complete=self.reaches_all(),
        )

    def _can_join(self) -> bool:
        """Whether the job is training already: its chief and all its ps run.

        A single task that runs may be left over from an older job.
        """
        return self._joins and all(peer.reach.kind == protocol.RUNNING for peer in self._needed)

    def _is_needed(self, task: Task) -> bool:
        """Whether a worker cannot train without a task: the chief, or a ps."""
        is_server = task.kind.serves and task.kind.in_tensorflow
        return is_server or task == self.me.cluster.chief_task
