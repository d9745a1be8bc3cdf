"""What a job consists of, planned as data before anything is started.

    job = JobSpec(python=sys.executable, script="train.py", workers=2)
    for task in plan(job, ports=(4001, 4002), cores=8, environ=os.environ):
        print(task.name, task.shell())

A launcher asks its surroundings for ports, cores and an environment, and starts what `plan` says.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tfdist.cluster import Cluster, Task
from tfdist.cluster.discovery import ClusterConfig
from tfdist.coordination import horovod_rendezvous
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.errors import UsageError
from tfdist.runtime import environment as runtime
from tfdist.strategies import table

HOST = "127.0.0.1"

# What says which task of which job a process is; one job's must not reach the tasks of another.
_PLACE_VARIABLES = (
    "TF_CONFIG",
    RESTARTABLE_VARIABLE,
    runtime.CORES_VARIABLE,
    table.STRATEGY_VARIABLE,
    *horovod_rendezvous.environment(horovod_rendezvous.slots([HOST])[0], HOST, 0),
)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A training job: what runs, under which strategy, in how many tasks.

    Attributes:
      python: the interpreter that runs the script.
      script: path of the script, or the module's name where `module` is true.
      args: the script's own arguments.
      module: run `script` as `python -m` does.
      strategy: a name of the strategy table; `auto` is replaced by the name that the numbers of
        tasks suggest.
      ps: parameter servers.
      workers: workers.
      chief: whether a chief stands beside the workers; under `parameter_server` it coordinates
        and the workers compute, elsewhere it is one more task that trains.
      evaluator: whether a task outside the cluster evaluates the checkpoints.
      divides_cores: whether the tasks that train keep each to its own cores of this machine.

    Raises:
      UsageError: the strategy has no use for these tasks; the error names the flag.
    """

    python: str
    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    strategy: str = "auto"
    ps: int = 0
    workers: int = 1
    chief: bool = False
    evaluator: bool = False
    divides_cores: bool = True

    def __post_init__(self) -> None:
        if self.ps < 0:
            raise UsageError(
                "--ps", received=self.ps, accepted="a number from 0", remedy="Correct the number."
            )
        if self.workers < 1:
            raise UsageError(
                "--workers",
                received=self.workers,
                accepted="a number from 1",
                remedy="Ask for at least one worker: workers compute the gradients.",
            )
        if self.strategy == "auto":
            # The addresses play no part in the choice.
            addresses = range(1, 1 + self.chief + self.workers + self.ps)
            name = table.choose(self.cluster(addresses), "default")
            object.__setattr__(self, "strategy", name)
        strategy = self.row
        if self.ps and not strategy.uses_ps:
            raise UsageError(
                "--ps",
                received=self.ps,
                accepted=f"0 under {self.strategy}",
                remedy=f"Remove the ps, or choose --strategy={_names(lambda row: row.uses_ps)}.",
            )
        if not self.ps and strategy.uses_ps:
            raise UsageError(
                "--ps",
                received=self.ps,
                accepted=f"a number from 1 under {self.strategy}",
                remedy="Ask for at least one ps: they hold the variables.",
            )
        if not strategy.spans_tasks:
            remedy = f"Choose --strategy={_names(lambda row: row.spans_tasks)}."
            if self.workers > 1:
                raise UsageError(
                    "--workers",
                    received=self.workers,
                    accepted=f"1: {self.strategy} trains in one process",
                    remedy=remedy,
                )
            if self.chief:
                raise UsageError(
                    "--chief",
                    received=True,
                    accepted=f"no chief: {self.strategy} trains in one process",
                    remedy=remedy,
                )

    @property
    def row(self) -> table.StrategySpec:
        """The strategy's row in the table."""
        return table.row(self.strategy)

    @property
    def num_ports(self) -> int:
        """How many ports the job uses: one a task of the cluster, and one for a rendezvous."""
        return self.chief + self.workers + self.ps + (self.row.rendezvous is not None)

    @property
    def training_hosts(self) -> list[str]:
        """The host of each task that trains: the chief, if there is one, then the workers."""
        return [HOST] * (self.chief + self.workers)

    def cluster(self, ports: Iterable[int]) -> Cluster:
        """The tasks with a port each, chief first, then workers, then ps."""
        addresses = iter([f"{HOST}:{port}" for port in ports])
        return Cluster(
            chief=tuple(next(addresses) for _ in range(self.chief)),
            worker=tuple(next(addresses) for _ in range(self.workers)),
            ps=tuple(next(addresses) for _ in range(self.ps)),
        )


@dataclass(frozen=True)
class TaskSpec:
    """One process to start.

    Attributes:
      name: `worker:0`.
      command: the program and its arguments.
      environment: the variables that are added to those of the launcher.
      removed: the launcher's variables that the process must not inherit.
      restarts_alone: whether the others can do without it for a while, so that it alone is started
        again where it fails: a worker of a parameter-server job, and an evaluator.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    removed: tuple[str, ...] = ()
    restarts_alone: bool = False

    def shell(self) -> str:
        """The task as one command that a POSIX shell runs."""
        without = ["env", *(f"-u {name}" for name in self.removed)] if self.removed else []
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*without, *added, shlex.join(self.command)])


class Membership(Protocol):
    """Which tasks a job consists of, each time that all of them are started.

    Attributes:
      can_change: whether they become more and fewer while the job runs.
    """

    can_change: ClassVar[bool]

    def tasks(self) -> Sequence[TaskSpec]:
        """Those to start now, the one that leads first; none while the job has to wait.

        Raises:
          TimeoutError: it has waited for too long.
        """

    def change(self) -> str | None:
        """Why all are to leave and start again; None while there is no reason. Never waits."""


@dataclass(frozen=True)
class FixedMembership:
    """The `Membership` of a job whose tasks are always the same."""

    always: Sequence[TaskSpec]

    can_change: ClassVar[bool] = False

    def tasks(self) -> Sequence[TaskSpec]:
        return self.always

    def change(self) -> None:
        return None


def plan(
    job: JobSpec, *, ports: Sequence[int], cores: int, environ: Mapping[str, str]
) -> tuple[TaskSpec, ...]:
    """Every task's command and environment; the task that leads comes first.

    Args:
      job: what to run.
      ports: `job.num_ports` ports of this machine.
      cores: the cores that the tasks which train divide among them.
      environ: the launcher's environment. Thread and log variables that the user has set in it
        are kept; another job's TF_CONFIG or Horovod rank is taken out.
    """
    cluster = job.cluster(ports)
    uses_ps = job.row.uses_ps
    computing = job.row.compute_tasks(cluster)
    evaluators = (Task("evaluator", 0),) if job.evaluator else ()
    result = []
    for task in (*cluster.tasks(), *evaluators):
        threads: int | None = max(1, cores // len(computing))
        if task.type == "ps":
            threads = max(1, cores // 4)  # Updates are little work beside gradients.
        elif task.type == "chief" and uses_ps:
            threads = None
        share = {}
        if task in computing and len(computing) > 1:
            part = f"{computing.index(task)}/{len(computing)}"
            share = {runtime.CORES_VARIABLE: part if job.divides_cores else runtime.ALL_CORES}
        defaults = runtime.environment(intra_threads=threads)
        environment = {
            **_place(job, cluster, task, ports),
            **share,
            # One process may turn out to have several GPUs to train on, by a flag of the script's.
            **({} if job.row.single_replica else {table.STRATEGY_VARIABLE: job.strategy}),
            **{name: environ.get(name, value) for name, value in defaults.items()},
            # A pipe would otherwise hold back what a task prints.
            "PYTHONUNBUFFERED": "1",
        }
        if task.type == "ps":
            # TensorFlow takes the memory of every GPU that it sees; a ps has no use for one.
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        removed = (name for name in _PLACE_VARIABLES if name in environ and name not in environment)
        command = command_of(job.python, job.script, job.args, module=job.module)
        restarts_alone = task.type == "evaluator" or (
            uses_ps and task.type == "worker" and task != cluster.chief_task
        )
        result.append(TaskSpec(str(task), command, environment, tuple(removed), restarts_alone))
    return tuple(result)


def plan_one(found: ClusterConfig, command: Sequence[str], strategy: str) -> TaskSpec:
    """The one task of a job that runs on this machine, its others elsewhere.

    Args:
      found: the cluster and the task, from flags or TF_CONFIG.
      command: what runs the script.
      strategy: `auto`, or a name of the strategy table.
    """
    environment = {RESTARTABLE_VARIABLE: "1", "PYTHONUNBUFFERED": "1"}
    if found.source == "flags":
        environment["TF_CONFIG"] = found.cluster.tf_config(found.task)
    if strategy != "auto":
        environment[table.STRATEGY_VARIABLE] = strategy
    return TaskSpec(str(found.task), tuple(command), environment)


def command_of(
    python: str, script: str, args: Sequence[str], *, module: bool = False
) -> tuple[str, ...]:
    """What runs a script; or a module, as `python -m` does."""
    return (python, *(("-m",) if module else ()), script, *args)


def _place(job: JobSpec, cluster: Cluster, task: Task, ports: Sequence[int]) -> dict[str, str]:
    """The variables that tell a task which one it is."""
    # The evaluator is outside the cluster under every strategy and reads TF_CONFIG.
    if task.type != "evaluator":
        if not job.row.spans_tasks:
            return {}
        if job.row.rendezvous is not None:
            environment: dict[str, str] = importlib.import_module(
                job.row.rendezvous
            ).environment_of(
                job.training_hosts, cluster.training_tasks.index(task), HOST, ports[-1]
            )
            return environment
    return {"TF_CONFIG": cluster.tf_config(task)}


def _names(has: Callable[[table.StrategySpec], bool]) -> str:
    return " or ".join(row.name for row in table.TABLE.values() if has(row))
