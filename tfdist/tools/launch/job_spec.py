"""Plans a job as data, before anything is started: each task's command and environment.

    job = JobSpec(python=sys.executable, script="train.py", counts=TaskCounts(worker=2))
    for task in task_specs(job, ports=(4001, 4002), cores=8, environ=os.environ):
        print(task.name, task.shell())

Ports, cores and the launcher's environment are arguments. A launcher starts the planned tasks.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tfdist.cluster import Cluster, Task, environments, host_and_port, task_types
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import PS, WORKER, TaskType
from tfdist.config.flags import FLAGS_VARIABLE, JobFlags
from tfdist.config.strategies import table
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.coordination.stores import horovod_rendezvous
from tfdist.errors import UsageError
from tfdist.process.cores import CORES_VARIABLE
from tfdist.tools.launch import run_script
from tfdist.tools.launch.rendezvous import HOST, rendezvous_environment
from tfdist.tools.launch.task_cores import cores_environment

#: Variables that place a process in a job; a task must not inherit those of another job.
PLACE_VARIABLES = (
    "TF_CONFIG",
    RESTARTABLE_VARIABLE,
    CORES_VARIABLE,
    table.STRATEGY_VARIABLE,
    FLAGS_VARIABLE,
    *horovod_rendezvous.environment(horovod_rendezvous.slots([HOST])[0], HOST, 0),
    *environments.marks(),
)


#: How a task gets the cluster: in TF_CONFIG, in its older dialect, as flags of the script, or in
#: the variables of `horovodrun`.
OLDER = "master"  # As it calls the chief.
CLUSTER_AS = ("tf_config", OLDER, "flags", "horovodrun")


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A training job: what runs, under which strategy, in how many tasks.

    Attributes:
      python: the interpreter that runs the script.
      script: the path of the script, or the name of a module if `module` is true.
      args: the arguments of the script.
      module: run `script` as `python -m` does.
      strategy: a name in the strategy table; `auto` chooses one by the number of tasks.
      flags: the flags of the job that were given before the script, by name.
      counts: the numbers of tasks. Under `parameter_server` a chief coordinates the workers;
        elsewhere it is one more task that trains.
      cluster_as: how a task gets the cluster; one of `CLUSTER_AS`.
      divides_cores: whether each training task is pinned to its own cores of this machine.
      is_auto: whether `strategy` was `auto`.

    Raises:
      UsageError: the strategy cannot use these tasks; the error names the flag.
    """

    python: str
    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    strategy: str = "auto"
    flags: Mapping[str, Any] = field(default_factory=dict)
    counts: TaskCounts = field(default_factory=lambda: TaskCounts(worker=1))
    cluster_as: str = "tf_config"
    divides_cores: bool = True
    is_auto: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        ps, workers = self.counts[PS], self.counts[WORKER]
        if workers < 1:
            raise UsageError(
                "--workers",
                received=workers,
                accepted="a number from 1",
                remedy="Ask for at least one worker: workers compute the gradients.",
            )
        for kind in self.counts.kinds():
            if self.counts[kind.name] < 0:
                raise UsageError(
                    f"--{kind.flag}",
                    received=self.counts[kind.name],
                    accepted="a number from 0",
                    remedy="Correct the number.",
                )
        if self.strategy == "auto":
            # The choice does not depend on the addresses.
            cluster = self.cluster(range(1, 1 + self.counts.in_cluster))
            name = table.choose(cluster, "default", self.flags.get("num_gpus"))
            object.__setattr__(self, "strategy", name)
            object.__setattr__(self, "is_auto", True)
        strategy = self.row
        if ps and not strategy.uses_ps:
            raise UsageError(
                "--ps",
                received=ps,
                accepted=f"0 under {self.strategy}",
                remedy=f"Remove the ps, or choose --strategy={_names(lambda row: row.uses_ps)}.",
            )
        if not ps and strategy.uses_ps:
            raise UsageError(
                "--ps",
                received=ps,
                accepted=f"a number from 1 under {self.strategy}",
                remedy="Ask for at least one ps: they hold the variables.",
            )
        if not strategy.spans_tasks:
            remedy = f"Choose --strategy={_names(lambda row: row.spans_tasks)}."
            if workers > 1:
                raise UsageError(
                    "--workers",
                    received=workers,
                    accepted=f"1: {self.strategy} trains in one process",
                    remedy=remedy,
                )
            if self.counts.training > workers:
                raise UsageError(
                    "--chief",
                    received=True,
                    accepted=f"no chief: {self.strategy} trains in one process",
                    remedy=remedy,
                )
        check_cluster_as(self.cluster_as, strategy, has_chief=self.counts.training > workers)
        check_options(strategy, self.flags, self.cluster(range(1, 1 + self.num_ports)))

    @property
    def row(self) -> table.StrategySpec:
        """The strategy's row in the table."""
        return table.row(self.strategy)

    @property
    def num_ports(self) -> int:
        """The number of ports: one per task of the cluster, and one for a rendezvous."""
        return self.counts.in_cluster + (self.row.rendezvous is not None)

    @property
    def training_hosts(self) -> list[str]:
        """The host of each training task: the chief, if there is one, then the workers."""
        return [HOST] * self.counts.training

    def cluster(self, ports: Iterable[int]) -> Cluster:
        """The cluster on these ports: chief first, then workers, then ps."""
        return self.counts.cluster(f"{HOST}:{port}" for port in ports)

    @property
    def reads_cluster(self) -> bool:
        """Whether a task needs the addresses of the others."""
        return self.row.reads_cluster or self.counts.in_cluster > self.counts.training


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
    def type(self) -> str:
        """The task's type: `worker` of `worker:0`."""
        return self.name.partition(":")[0]

    @property
    def kind(self) -> TaskType:
        """What is known about its type; a worker's for a connection to a host."""
        return task_types.rows().get(self.type) or task_types.row(WORKER)

    def shell(self) -> str:
        """The task as one command for a POSIX shell."""
        without = ["env", *(f"-u {name}" for name in self.removed)] if self.removed else []
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*without, *added, shlex.join(self.command)])


#: Returns what the tasks need while they run.
Service = Callable[[], AbstractContextManager[object]]


class Membership(Protocol):
    """The tasks of a job at each start of all tasks.

    Attributes:
      can_change: whether the tasks can change while the job runs.
    """

    can_change: ClassVar[bool]

    def tasks(self) -> Sequence[TaskSpec]:
        """The tasks to start now, the chief first; none while the job has to wait.

        Raises:
          TimeoutError: the job has waited for too long.
        """

    def change(self) -> str | None:
        """Why all tasks must restart; None if they need not. Does not wait."""

    def service(self) -> AbstractContextManager[object]:
        """What the tasks of the last `tasks()` need while they run."""


@dataclass(frozen=True)
class FixedMembership:
    """The `Membership` of a job whose tasks do not change.

    Attributes:
      always: the tasks, the chief first.
      serve: what they need while they run.
    """

    always: Sequence[TaskSpec]
    serve: Service = nullcontext

    can_change: ClassVar[bool] = False

    def tasks(self) -> Sequence[TaskSpec]:
        return self.always

    def change(self) -> None:
        return None

    def service(self) -> AbstractContextManager[object]:
        return self.serve()


def task_specs(
    job: JobSpec, *, ports: Sequence[int], cores: int, environ: Mapping[str, str]
) -> tuple[TaskSpec, ...]:
    """Plans every task; the chief comes first.

    Args:
      job: what to run.
      ports: `job.num_ports` ports of this machine.
      cores: the cores that the training tasks divide.
      environ: the launcher's environment. Thread and log variables that the user has set are
        kept; another job's TF_CONFIG or Horovod rank is removed.
    """
    cluster = job.cluster(ports)
    computing = job.row.compute_tasks(cluster)
    result = []
    for task in job.counts.tasks():
        environment = {
            **_place(job, cluster, task, ports),
            **cores_environment(task, computing, job.divides_cores, cores, environ),
            **job_environment(job, task),
        }
        removed = (name for name in PLACE_VARIABLES if name in environ and name not in environment)
        command = command_of(job.python, job.script, job.args, module=job.module)
        if job.cluster_as == "flags":
            command += tuple(cluster.flags(task))
        restarts_alone = task.kind.restarts_alone or (
            job.row.uses_ps and task.kind.trains and task != cluster.chief_task
        )
        result.append(
            TaskSpec(
                str(task),
                command,
                environment,
                tuple(removed),
                restarts_alone=restarts_alone,
                serves=task.kind.serves or job.row.serves(cluster, task),
                port=port_of(cluster, task) if job.row.reads_cluster else None,
                rendezvous_port=ports[-1]
                if job.row.rendezvous and len(job.training_hosts) > 1
                else None,
            )
        )
    return tuple(result)


def job_environment(job: JobSpec, task: Task) -> dict[str, str]:
    """The variables of a task that depend neither on its machine nor on the other tasks."""
    # Otherwise Python buffers what a task prints to a pipe.
    result = {"PYTHONUNBUFFERED": "1", **passed_flags(job.flags)}
    if not (job.is_auto and job.row.single_replica):
        # A flag of the script may give a single process several GPUs.
        result[table.STRATEGY_VARIABLE] = job.strategy
    if not task.kind.has_gpu:
        # TensorFlow allocates the memory of every visible GPU.
        result["CUDA_VISIBLE_DEVICES"] = "-1"
    return result


def port_of(cluster: Cluster, task: Task) -> int | None:
    """The port that a task opens to join the others; None if no other task trains."""
    if task not in cluster.tasks() or len(cluster.training_tasks) < 2:
        return None
    return host_and_port(cluster.address(task))[1]


def check_options(row: table.StrategySpec, flags: Mapping[str, Any], cluster: Cluster) -> None:
    """Checks the flags before the script, as each task does when it starts.

    Raises:
      UsageError: a value is out of its bounds, or does not apply to this strategy and these tasks.
    """
    job_flags = JobFlags.of(**flags)
    row.check_heartbeat(job_flags.heartbeat_timeout)
    table.check_flags(row, job_flags.of_strategy, job_flags.num_gpus, cluster)


def check_cluster_as(cluster_as: str, row: table.StrategySpec, *, has_chief: bool) -> None:
    """Checks that the tasks of a strategy can get the cluster in this form.

    Raises:
      UsageError: the strategy has another form, or there is no chief to be called `master`.
    """
    accepted = ["tf_config"]
    if row.reads_cluster:
        accepted += [OLDER, "flags"]
    if row.rendezvous:
        accepted += ["horovodrun"]
    if cluster_as not in accepted:
        raise UsageError(
            "--cluster_as",
            received=f"{cluster_as} with --strategy={row.name}",
            accepted=f"{' or '.join(accepted)} with {row.name}",
            remedy="Leave it out.",
        )
    if cluster_as == OLDER and not has_chief:
        raise UsageError(
            "--cluster_as",
            received="master in a cluster without a chief",
            accepted="master with --chief",
            remedy="Add --chief.",
        )


def command_of(
    python: str, script: str, args: Sequence[str], *, module: bool = False
) -> tuple[str, ...]:
    """The command that runs a script, or a module like `python -m`."""
    return (python, *(run_script.MODULE if module else ()), script, *args)


def _place(job: JobSpec, cluster: Cluster, task: Task, ports: Sequence[int]) -> dict[str, str]:
    """The variables that place a task in the job."""
    if job.cluster_as == "flags":
        return {}
    # Under every strategy the evaluator is outside the cluster and reads TF_CONFIG.
    if not task.kind.in_cluster or job.reads_cluster:
        return {"TF_CONFIG": cluster.tf_config(task, older=job.cluster_as == OLDER)}
    return rendezvous_environment(
        job.row, len(job.training_hosts), cluster.training_tasks.index(task), ports[-1]
    )


def passed_flags(flags: Mapping[str, Any]) -> dict[str, str]:
    """The variable that passes flags to a task; none without flags."""
    return {FLAGS_VARIABLE: json.dumps(dict(flags))} if flags else {}


def _names(has: Callable[[table.StrategySpec], bool]) -> str:
    return " or ".join(row.name for row in table.rows().values() if has(row))
