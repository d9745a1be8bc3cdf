"""Runs a job as processes on this machine.

    job = JobSpec(python=sys.executable, script="train.py", counts=TaskCounts(worker=2))
    sys.exit(launch(job, environ=os.environ, supervision=Supervision(max_restarts=3)))

The first task that fails ends the others, and so does a signal to the launcher. The tasks get the
signal first and are killed later if they still run, because TensorFlow ignores SIGTERM. No task
outlives the launcher. Needs Linux (`prctl`) and Python's main thread.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from tfdist.cluster.config import ClusterConfig
from tfdist.config.launch_options import ElasticOptions
from tfdist.coordination import shutdown
from tfdist.coordination.seal import TOKEN_VARIABLE, new_token, token_of
from tfdist.process.cores import given_cores
from tfdist.tools.launch.elastic_job import ElasticMembership
from tfdist.tools.launch.elastic_workers import ElasticWorkers
from tfdist.tools.launch.job_spec import JobSpec, task_specs
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.rendezvous import HOST
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor
from tfdist.tools.launch.task_plan import TaskSpec

# Longer than a server takes to find that its chief has exited.
_NOTICE_SECONDS = 10.0


def launch(job: JobSpec, *, environ: Mapping[str, str], supervision: Supervision) -> int:
    """Runs `job` to its end.

    Args:
      job: what to run.
      environ: the environment that the tasks inherit.
      supervision: when to end, kill and restart tasks.

    Returns:
      The launcher's exit code, as `Supervisor.run`.

    Raises:
      UsageError: a package that the strategy needs is not installed.
    """
    with hold_ports(job.num_ports) as ports:
        tasks = task_specs(job, ports=ports, cores=given_cores(environ), environ=environ)
        # Separates the tasks from those of another job that uses their ports by mistake.
        environ = {TOKEN_VARIABLE: new_token(), **environ}
        members = Membership(tasks, job.rendezvous(ports))
        return Supervisor(members, environ, supervision).run()


def run_one(
    config: ClusterConfig,
    task: TaskSpec,
    *,
    environ: Mapping[str, str],
    supervision: Supervision,
) -> int:
    """Runs this machine's task of a job that spans machines, and restarts it when it fails.

    The launchers of different machines do not communicate. The other tasks of an all-reduce fail
    too, are restarted on their own machines, and all tasks wait for each other at the startup
    barrier.

    Args:
      config: the cluster, and the task of this machine.
      task: the planned task; see `own_place`.
      environ: the environment that the task inherits.
      supervision: as for `launch`.

    Returns:
      As `launch`.
    """
    code = Supervisor(Membership([task]), environ, supervision).run()
    has_servers = any(task.kind.serves for task in config.cluster.tasks())
    if code == 0 and has_servers and config.task == config.cluster.chief_task:
        address = config.cluster.address(config.task)
        shutdown.announce_completion(address, token_of(environ), _NOTICE_SECONDS)
    return code


def run_elastic(
    job: JobSpec,
    options: ElasticOptions,
    *,
    environ: Mapping[str, str],
    supervision: Supervision,
) -> int:
    """Runs this machine's tasks of an elastic job; see `tfdist.tools.launch.elastic_job`.

    Returns:
      As `launch`; 1 also if the timeout passed without enough hosts.

    Raises:
      UsageError: the host discovery script cannot be used, or not with these options.
    """
    assert options.max_workers is not None
    if options.port is None:
        environ = {TOKEN_VARIABLE: new_token(), **environ}
    kind = ElasticWorkers if job.row.workers_may_rejoin else ElasticMembership
    with hold_ports(max(options.max_workers + 1, job.num_ports)) as ports:
        members = kind(job=job, options=options, ports=ports, environ=environ)
        with closing(members):
            return Supervisor(members, environ, supervision).run()


@contextmanager
def hold_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Reserves free ports on 127.0.0.1 while the block runs.

    Each port is bound by a socket that does not listen. Linux lets a task bind and listen on the
    same port if both sockets have SO_REUSEADDR, as TensorFlow's gRPC and Horovod's rendezvous do.
    """
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.bind((HOST, 0))
            # Not earlier: the kernel could choose a port that another launcher has reserved.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports.append(int(holder.getsockname()[1]))
        yield tuple(ports)
