"""Runs a job as processes on this machine.

    job = JobSpec(python=sys.executable, script="train.py", workers=2)
    sys.exit(launch(job, environ=os.environ))

The first task that fails ends the others, and so does a signal to the launcher: they are asked,
and killed where they do not follow, because a TensorFlow worker swallows SIGTERM. No task outlives
the launcher, however that ends. Needs Linux (`prctl`), and Python's main thread.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial

from tfdist.cluster.discovery import ClusterConfig
from tfdist.coordination import shutdown
from tfdist.coordination.startup import TOKEN_VARIABLE
from tfdist.errors import UsageError
from tfdist.launch.elastic import Elasticity, ElasticMembership
from tfdist.launch.signals import signals
from tfdist.launch.spec import HOST, FixedMembership, JobSpec, TaskSpec, plan
from tfdist.launch.supervisor import Service, Supervision, Supervisor

# Longer than a server takes to find that its leader has exited.
_COMPLETION_NOTICE_SECONDS = 10.0


def launch(
    job: JobSpec, *, environ: Mapping[str, str], supervision: Supervision | None = None
) -> int:
    """Runs `job` to its end and returns the launcher's exit code, as `run` does.

    Raises:
      UsageError: a package that the strategy needs is not installed.
    """
    with hold_ports(job.num_ports) as ports:
        tasks = plan(job, ports=ports, cores=available_cores(), environ=environ)
        # Keeps the tasks apart from those of another job that has their ports by mistake.
        environ = {TOKEN_VARIABLE: secrets.token_hex(16), **environ}
        service: Service = nullcontext
        if job.row.rendezvous is not None:
            service = partial(_rendezvous, job, job.row.rendezvous, ports[-1])
        return run(tasks, environ=environ, supervision=supervision, service=service)


def run(
    tasks: Sequence[TaskSpec],
    *,
    environ: Mapping[str, str],
    supervision: Supervision | None = None,
    service: Service = nullcontext,
) -> int:
    """Runs every task as a process, shows their output, and returns when all have ended.

    Args:
      tasks: what to start; the first is the one that leads.
      environ: what the tasks inherit, beside what they add.
      supervision: when to end, kill, name and restart; by default nothing is started again.
      service: what the tasks need while they run; begun anew whenever all of them are started.

    Returns:
      0 when every task has ended with 0; else the exit code of the first that failed for good,
      128 + n for signal n; 128 + n also where signal n to this process ended the job.
    """
    with signals() as wakeup:
        return Supervisor(
            FixedMembership(tasks), environ, wakeup, supervision or Supervision(), service
        ).run()


def run_one(
    found: ClusterConfig, task: TaskSpec, *, environ: Mapping[str, str], supervision: Supervision
) -> int:
    """Runs this machine's task of a job that spans machines; started again when it fails.

    The others do not know of it: those of an all-reduce fail with it, are started again by their
    own machines, and all meet again in `tfdist.init()`.

    Args:
      found: the cluster, and which of its tasks runs here.
      task: what is to be started for it; see `plan_one`.
      environ: what the task inherits.
      supervision: as for `run`.

    Returns:
      As `run`.
    """
    code = run([task], environ=environ, supervision=supervision)
    if code == 0 and found.cluster.ps and found.task == found.cluster.chief_task:
        shutdown.announce_completion(found.cluster.address(found.task), _COMPLETION_NOTICE_SECONDS)
    return code


def run_elastic(
    job: JobSpec,
    elasticity: Elasticity,
    *,
    environ: Mapping[str, str],
    supervision: Supervision,
) -> int:
    """Runs this machine's tasks of a job that shrinks and grows; see `tfdist.launch.elastic`.

    Returns:
      As `run`; 1 also where there were not enough hosts for too long.

    Raises:
      UsageError: the script that lists the hosts cannot be used, or not with these options.
    """
    with hold_ports(elasticity.max_workers) as ports, signals() as wakeup:
        if elasticity.port is None:
            environ = {TOKEN_VARIABLE: secrets.token_hex(16), **environ}
        members = ElasticMembership(
            job, elasticity, ports, cores=available_cores(), environ=environ
        )
        with closing(members):
            return Supervisor(members, environ, wakeup, supervision).run()


@contextmanager
def _rendezvous(job: JobSpec, module: str, port: int) -> Iterator[None]:
    try:
        with importlib.import_module(module).serve_hosts(job.training_hosts, HOST, port):
            yield
    except ModuleNotFoundError as error:
        raise UsageError(
            "--strategy",
            received=job.strategy,
            accepted=f"a strategy whose engine is installed ({error})",
            remedy="Build it with scripts/build_horovod.",
        ) from None


@contextmanager
def hold_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Free ports on 127.0.0.1 that nobody else is given while the block runs.

    Each is kept by a socket that is bound and does not listen: Linux lets a task bind and listen
    beside it where both have SO_REUSEADDR, as TensorFlow's gRPC and Horovod's rendezvous do.
    """
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.bind((HOST, 0))
            # Only now: with it, the kernel may choose a port that another launcher holds.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports.append(int(holder.getsockname()[1]))
        yield tuple(ports)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
