"""Plans the command and the environment of a task, for every way of starting it.

    task = task_plan(job, cluster, Task("worker", 0), Place(environ=os.environ))
    subprocess.run(task.command, env=task.environ(os.environ))

`Place` says how the tasks of one launcher differ from those of another: `tfdist run` on this
machine, on hosts, for an elastic job, or for one task of a job, and `tfdist exec`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import Cluster, Task, environments, host_and_port, task_types
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.task_types import WORKER, TaskType
from tfdist.config.flags import FLAGS_VARIABLE
from tfdist.config.launch_options import FLAGS, HOROVODRUN, KERAS, OLDER, RANKED, TF_CONFIG
from tfdist.config.strategies import table
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.coordination.stores import horovod_rendezvous
from tfdist.process import proxies
from tfdist.process import setup as runtime
from tfdist.process.cores import ALL_CORES, CORES_VARIABLE
from tfdist.tools.launch import run_script
from tfdist.tools.launch.rendezvous import HOST, Rendezvous

# The addresses of all processes, their number, and the number of this one: the sources of Keras,
# `keras.distribution.initialize`.
_KERAS_VARIABLES = (
    "KERAS_DISTRIBUTION_JOB_ADDRESSES",
    "KERAS_DISTRIBUTION_NUM_PROCESSES",
    "KERAS_DISTRIBUTION_PROCESS_ID",
)
# The address of the first process; the number of all, and of this one; the same on this machine:
# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
_TORCH_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
    *("LOCAL_WORLD_SIZE", "LOCAL_RANK"),
)

#: Variables that place a process in a job; a task must not inherit those of another job.
PLACE_VARIABLES = (
    "TF_CONFIG",
    RESTARTABLE_VARIABLE,
    CORES_VARIABLE,
    table.STRATEGY_VARIABLE,
    FLAGS_VARIABLE,
    *horovod_rendezvous.environment_of([HOST], 0, HOST, 0),
    *_KERAS_VARIABLES,
    *_TORCH_VARIABLES,
    *environments.marks(),
)


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """What each task of a job runs.

    Attributes:
      python: the interpreter that runs the script.
      script: the path of the script, or the name of a module if `module` is true.
      args: the arguments of the script.
      module: run `script` as `python -m` does.
      strategy: the name of a row of the strategy table.
      is_auto: whether `strategy` was chosen by the cluster.
      flags: the flags of the job that were given before the script, by name.
      cluster_as: how a task gets the cluster; one of `CLUSTER_AS`.
      divides_cores: whether each training task is pinned to its own cores of its machine.
    """

    python: str
    script: str
    args: Sequence[str] = ()
    module: bool = False
    strategy: str = "auto"
    is_auto: bool = False
    flags: Mapping[str, Any] = field(default_factory=dict)
    cluster_as: str = TF_CONFIG
    divides_cores: bool = True

    @property
    def row(self) -> table.StrategySpec:
        """The strategy's row in the table."""
        return table.row(self.strategy)

    def command(
        self, flags: Sequence[str] = (), *, executes: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """The command of a task.

        Args:
          flags: flags of the script, after its arguments.
          executes: the flags of `tfdist exec`, which then starts the script; None without it.
        """
        module = run_script.MODULE if self.module and executes is None else ("-m",) * self.module
        launcher = () if executes is None else ("-m", "tfdist", "exec", *executes)
        return (self.python, *launcher, *module, self.script, *self.args, *flags)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a launcher starts tasks, and what it does for them.

    Attributes:
      environ: the environment that they inherit. Thread and log variables in it are kept.
      computing: the tasks of the machine that compute in every step.
      cores: the cores that they divide; None if the tasks find that out themselves.
      reads_cluster: whether the tasks of the cluster are told the addresses of the others.
      rendezvous: the rendezvous of the tasks that train, which a launcher serves; None without.
      executes: the flags of `tfdist exec` that starts the tasks of the cluster; None without it.
      inherits_cluster: whether `environ` describes the cluster already.
      restarts: whether a launcher restarts each task on its own machine.
      is_whole_job: whether this launcher starts all tasks of the job.
      removes: the variables of another job, which the tasks do not inherit.
      machines: the cluster with the addresses of the machines, if its own are in a tunnel, where
        each task has another one.
    """

    environ: Mapping[str, str]
    computing: Sequence[Task] = ()
    cores: int | None = None
    reads_cluster: bool = True
    rendezvous: Rendezvous | None = None
    executes: Sequence[str] | None = None
    inherits_cluster: bool = False
    restarts: bool = False
    is_whole_job: bool = False
    removes: Sequence[str] = PLACE_VARIABLES
    machines: Cluster | None = None


@dataclass(frozen=True)
class TaskSpec:
    """One process to start.

    Attributes:
      name: `worker:0`.
      command: the program and its arguments.
      environment: variables that are added to the launcher's.
      removed: variables of the launcher that the process must not inherit.
      restarts_alone: whether it is restarted alone after a failure, because the others can
        continue without it: a worker of a parameter-server job, or an evaluator.
      port: the port that it opens to join the others; None if it opens none.
      rendezvous_port: the port of the launcher to which it connects to join the others; None if the
        launcher serves no rendezvous.
      serves: whether it serves the other tasks in a Keras job. (A worker on parameter servers
        trains in an Estimator's job.)
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    removed: tuple[str, ...] = ()
    restarts_alone: bool = False
    port: int | None = None
    rendezvous_port: int | None = None
    serves: bool = False

    @property
    def kind(self) -> TaskType:
        """The row of its type; for a connection to a host, the row of a worker."""
        type = self.name.partition(":")[0]
        return task_types.rows().get(type) or task_types.row(WORKER)

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process.

        Args:
          inherited: the launcher's environment.
        """
        kept = {name: value for name, value in inherited.items() if name not in self.removed}
        return {**kept, **self.environment}

    def shell(self) -> str:
        """The task as one command for a POSIX shell."""
        without = ["env", *(f"-u {name}" for name in self.removed)] if self.removed else []
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*without, *added, shlex.join(self.command)])


def task_plan(job: ScriptSpec, cluster: Cluster, task: Task, place: Place) -> TaskSpec:
    """Plans a task.

    Args:
      job: what it runs.
      cluster: the tasks of the job.
      task: a task of the cluster, or one beside it.
      place: where it is started.
    """
    executes = place.executes if task.kind.in_cluster else None
    environment: dict[str, str] = {}
    flags: list[str] = []
    if not place.inherits_cluster and (place.reads_cluster or not task.kind.in_cluster):
        cluster_as = job.cluster_as if executes is None else TF_CONFIG
        environment, flags = cluster_for(cluster, task, cluster_as, place.machines)
    if place.rendezvous and task.kind.trains:
        rank = cluster.training_tasks.index(task)
        environment |= place.rendezvous.environment(rank)
    environment |= proxies.exempted(cluster.hosts, place.environ)
    environment |= _cores(job, task, place)
    # Otherwise Python buffers what a task prints to a pipe.
    environment["PYTHONUNBUFFERED"] = "1"
    if job.flags:
        environment[FLAGS_VARIABLE] = json.dumps(dict(job.flags))
    if place.restarts:
        environment[RESTARTABLE_VARIABLE] = "1"
    if not (job.is_auto and job.row.single_replica):
        # A flag of the script may give a single process several GPUs.
        environment[table.STRATEGY_VARIABLE] = job.strategy
    if not task.kind.has_gpu:
        # TensorFlow allocates the memory of every visible GPU.
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    has_others = len(cluster.training_tasks) > 1
    opens_port = place.reads_cluster and executes is None and task in cluster.tasks()
    removed = (n for n in place.removes if n in place.environ and n not in environment)
    return TaskSpec(
        str(task),
        job.command(flags, executes=executes),
        environment,
        tuple(removed),
        restarts_alone=place.is_whole_job and job.row.restarts_alone(cluster, task),
        port=host_and_port(cluster.address(task))[1] if opens_port and has_others else None,
        rendezvous_port=place.rendezvous.port if place.rendezvous and has_others else None,
        serves=task.kind.serves or job.row.serves(cluster, task),
    )


def exec_flags(job: ScriptSpec, *, tls: bool = False) -> list[str] | None:
    """The flags of `tfdist exec` if the tasks of the cluster are started by it, else None.

    It makes the tunnel of a task, and lets the ranks of Horovod wait for each other.

    Args:
      job: what the tasks run.
      tls: whether they connect to each other over TLS.
    """
    if not tls and job.cluster_as != HOROVODRUN:
        return None
    flags = [f"--strategy={job.strategy}", f"--cluster_as={job.cluster_as}"]
    if "startup_timeout" in job.flags:
        flags.append(f"--startup_timeout={job.flags['startup_timeout']}")
    if tls:
        flags.append("--tls")
    return flags


def own_place(
    job: ScriptSpec, config: ClusterConfig, environ: Mapping[str, str], *, restarts: bool = False
) -> Place:
    """The place of this machine's task in a job whose other tasks start elsewhere.

    Args:
      job: what it runs.
      config: the cluster, the task and their source.
      environ: the environment that the task inherits.
      restarts: whether a launcher starts the task, and may start it again. Otherwise this process
        becomes the task.
    """
    executes = exec_flags(job) if restarts else None
    by_rank = executes is None and job.cluster_as == HOROVODRUN and config.task.kind.in_cluster
    # TF_CONFIG may have more than the cluster and the task.
    inherits = config.source == "TF_CONFIG" and job.cluster_as == TF_CONFIG
    return Place(
        environ=environ,
        reads_cluster=not by_rank,
        rendezvous=Rendezvous.of(job.row, config.cluster) if by_rank else None,
        executes=executes,
        inherits_cluster=inherits,
        restarts=restarts,
        removes=() if inherits else ("TF_CONFIG",),
    )


def cluster_for(
    cluster: Cluster, task: Task, cluster_as: str, machines: Cluster | None = None
) -> tuple[dict[str, str], list[str]]:
    """The variables and the flags that tell a task the cluster, in a form of `CLUSTER_AS`.

    Args:
      cluster: the tasks of the job.
      task: a task of the cluster, or one beside it.
      cluster_as: one of `CLUSTER_AS`.
      machines: see `Place`.
    """
    if cluster_as == FLAGS:
        return {}, cluster.flags(task)
    if cluster_as in RANKED:
        return _ranked(cluster, task, cluster_as, machines or cluster), []
    return {"TF_CONFIG": cluster.tf_config(task, older=cluster_as == OLDER)}, []


def _ranked(cluster: Cluster, task: Task, cluster_as: str, machines: Cluster) -> dict[str, str]:
    """The variables of libraries that number the training tasks."""
    tasks = cluster.training_tasks
    if task not in tasks:
        return {}
    addresses, rank = [cluster.address(each) for each in tasks], tasks.index(task)
    if cluster_as == KERAS:
        found = ",".join(addresses), str(len(tasks)), str(rank)
        return dict(zip(_KERAS_VARIABLES, found, strict=True))
    hosts = [host_and_port(machines.address(each))[0] for each in tasks]
    own = [number for number, host in enumerate(hosts) if host == hosts[rank]]
    values = (*host_and_port(addresses[0]), len(tasks), rank, len(own), own.index(rank))
    return dict(zip(_TORCH_VARIABLES, map(str, values), strict=True))


def _cores(job: ScriptSpec, task: Task, place: Place) -> dict[str, str]:
    """The variables for a task's cores and threads, and others that TensorFlow reads at import."""
    if place.cores is None:
        return {} if job.divides_cores else {CORES_VARIABLE: ALL_CORES}
    computing, share = list(place.computing), {}
    # Where no task computes, the others may use all cores.
    threads = max(1, place.cores // len(computing)) if computing else None
    if task in computing:
        if len(computing) > 1:
            part = f"{computing.index(task)}/{len(computing)}"
            share = {CORES_VARIABLE: part if job.divides_cores else ALL_CORES}
    elif task.kind.leads:
        threads = None  # It only schedules the steps of the workers.
    elif computing and task.kind.core_share is not None:
        threads = max(1, int(place.cores * task.kind.core_share))
    defaults = runtime.environment(threads, place.environ)
    return share | {name: place.environ.get(name, value) for name, value in defaults.items()}
