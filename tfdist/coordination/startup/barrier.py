"""The startup barrier: returns when the tasks of a job reach each other, or says why they do not.

    me = Hello(cluster=cluster, task=task, strategy="parameter_server", versions=versions())
    outcome = wait_at_barrier(BarrierConfig(me, timeout=300))
    if outcome.verdict:
        sys.exit(str(outcome))

Each task listens on its own port, connects to its peers, and reports to the chief which of them it
reaches. When the chief reaches every task, and every task reports that it reaches its peers, the
chief sends the verdict. Each task then closes its port, which TensorFlow will use. A contradiction
between tasks ends the barrier for all of them. A peer that is not reached is tried again until the
timeout. A task that does not reach the chief says so itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfdist.cluster import Task, host_and_port
from tfdist.coordination.startup import addresses
from tfdist.coordination.startup.chief import Chief
from tfdist.coordination.startup.member import Member
from tfdist.coordination.startup.open_files import open_files
from tfdist.coordination.startup.participant import BarrierConfig
from tfdist.errors import UsageError, log


@dataclass(frozen=True)
class Outcome:
    """The result of the startup barrier.

    Attributes:
      verdict: why the job cannot start; empty if it can.
      details: which task does not reach which, as lines of text.
      seconds: how long this task waited.
      endpoints: by task, the host and the port where it answers when it is asked what it does, as
        far as this task has met it.
    """

    verdict: str
    details: str
    seconds: float
    endpoints: Mapping[Task, tuple[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.details}"


def wait_at_barrier(config: BarrierConfig, *, log: Callable[[str], None] = log) -> Outcome:
    """Waits at the startup barrier until all tasks are ready, or cannot become ready.

    Args:
      config: this task, and what it expects.
      log: logs a line; by default to stderr.

    Raises:
      UsageError: this task's port cannot be bound, or this process may open too few files.
    """
    begin = time.monotonic()
    cluster, task = config.me.cluster, config.me.task
    participant = (Chief if task == cluster.chief_task else Member)(config, log)
    try:
        listener = addresses.open_port(cluster, task)
    except UsageError:
        if why := asyncio.run(participant.ask_at_own_address()):
            return Outcome(why, "", time.monotonic() - begin)
        raise
    with listener, open_files(cluster):
        try:
            verdict = asyncio.run(participant.run(listener))
        finally:
            # Asyncio leaves connections open that it has accepted a moment before its end. One of
            # them can be gRPC's, of a peer that reconnects: it would wait forever for an answer.
            listener.close_accepted()
    endpoints = {}
    if not verdict.text:
        # Otherwise there may be tasks that this cluster does not have.
        endpoints = {
            other: (host_and_port(cluster.address(other))[0], hello.report_port)
            for other, hello in participant.table.hellos.items()
            if other != task and hello.report_port
        }
    seconds = time.monotonic() - begin
    return Outcome(verdict.text, "\n".join(verdict.details), seconds, endpoints)
