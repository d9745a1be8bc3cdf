"""The startup barrier: returns when the tasks of a job reach each other, or says why they do not.

    config = BarrierConfig(
        cluster=cluster, task=task, strategy="parameter_server", timeout=300, versions=versions()
    )
    outcome = wait_at_barrier(config)
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


def wait_at_barrier(
    config: BarrierConfig,
    *,
    log: Callable[[str], None] = log,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Waits at the startup barrier until all tasks are ready, or cannot become ready.

    Args:
      config: this task, and what it expects.
      log: logs a line; by default to stderr.
      clock: the wall clock, in seconds since the epoch.

    Raises:
      UsageError: this task's port cannot be bound, or this process may open too few files.
    """
    begin = time.monotonic()
    is_chief = config.task == config.cluster.chief_task
    participant = (Chief if is_chief else Member)(config, log, clock)
    try:
        listener = addresses.open_port(config.cluster, config.task)
    except UsageError:
        if why := asyncio.run(participant.ask_at_own_address()):
            return Outcome(why, "", time.monotonic() - begin)
        raise
    with listener, open_files(config.cluster):
        try:
            verdict = asyncio.run(participant.run(listener))
        finally:
            # Asyncio leaves connections open that it has accepted a moment before its end. One of
            # them can be gRPC's, of a peer that reconnects: it would wait forever for an answer.
            listener.close_accepted()
    for line in verdict.warnings:
        log(line)
    endpoints = {}
    if not verdict.text:
        # Otherwise there may be tasks that this cluster does not have.
        endpoints = {
            task: (host_and_port(config.cluster.address(task))[0], hello.report_port)
            for task, hello in participant.table.hellos.items()
            if task != config.task and hello.report_port
        }
    seconds = time.monotonic() - begin
    return Outcome(verdict.text, "\n".join(verdict.details), seconds, endpoints)
