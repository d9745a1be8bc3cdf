"""The table of the types of tasks: what is known about `worker`, `ps` and the others.

    row("ps").has_gpu                       # False
    in_cluster()                            # ("chief", "worker", "ps")
    register(TaskType(name="cache", help="a cache of examples", function="cache.server:serve"))

The rows are those of this module, those of installed packages with an entry point in the group
`tfdist.task_types`, and those that a script registers. All other modules ask the rows, and compare
with no name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tfdist.process.plugins import Registry

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"

#: An engine that has names of its own for the types.
TFJOB = "TFJob"

#: The group of entry points by which an installed package adds a type. Each one names a `TaskType`
#: in a module that does not import TensorFlow.
ENTRY_POINTS = "tfdist.task_types"


@dataclass(frozen=True, kw_only=True)
class TaskType:
    """A row of the table.

    Attributes:
      name: the type, as in TF_CONFIG; the flag of its addresses is `--NAME_hosts`.
      help: what one is, for `tfdist run --help`.
      does: what its tasks do, unless the job's strategy says that those that train serve.
      function: what serves in place of the script and the strategy, as `module:function`. It is
        called with the `TaskRole`, in a thread, after the startup barrier, and may listen at the
        address of its task. The process ends with the job.
      strategy: the strategy under which its tasks compute alone; None for the job's.
      in_cluster: whether its tasks have addresses and wait at the startup barrier.
      in_tensorflow: whether they are in TensorFlow's ClusterSpec.
      leads: whether its task is the job's chief. Without one, worker 0 is.
      most: the most tasks of this type in a job; None for any number.
      plural: the flag of `tfdist run` for the number of them; the name if it is empty.
      rank: where an engine numbers the tasks, those of the types with lower numbers come first.
      has_gpu: whether its tasks use GPUs.
      core_share: the share of a machine's cores for its threads; None for as many as a training
        task has.
      restarts_alone: whether a task that failed is restarted alone under every strategy.
      older_name: its name in the older dialect of TF_CONFIG.
      engines: its names in engines that have their own.
    """

    name: str
    help: str
    does: Literal["trains", "serves", "evaluates"] = "serves"
    function: str | None = None
    strategy: str | None = None
    in_cluster: bool = True
    in_tensorflow: bool = False
    leads: bool = False
    most: int | None = None
    plural: str = ""
    rank: int = 1
    has_gpu: bool = False
    core_share: float | None = None
    restarts_alone: bool = False
    older_name: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether its tasks train, or compute gradients for the task that trains."""
        return self.does == "trains"

    @property
    def serves(self) -> bool:
        """Whether its tasks serve under every strategy."""
        return self.does == "serves"

    @property
    def evaluates(self) -> bool:
        """Whether its tasks evaluate the checkpoints."""
        return self.does == "evaluates"

    @property
    def flag(self) -> str:
        """The flag of `tfdist run` that asks for them; it takes a number unless `most` is 1."""
        return self.plural or self.name

    @property
    def rank_flag(self) -> str | None:
        """The script's flag that says how many of an engine's ranks are such tasks; None for types
        that train, to which all other ranks belong."""
        if self.trains:
            return None
        return self.name if self.most == 1 else f"num_{self.name}"


_ROWS = (
    TaskType(
        name=CHIEF,
        help="add a chief: with parameter_server it coordinates the workers, with other "
        "strategies it trains too; without this flag worker 0 is the chief",
        does="trains",
        in_tensorflow=True,
        leads=True,
        most=1,
        rank=2,
        has_gpu=True,
        older_name="master",
        engines={TFJOB: "Chief"},
    ),
    TaskType(
        name=WORKER,
        help="number of workers (default 1)",
        does="trains",
        in_tensorflow=True,
        plural="workers",
        rank=3,
        has_gpu=True,
        engines={TFJOB: "Worker"},
    ),
    TaskType(
        name=PS,
        help="number of parameter servers (default 0)",
        in_tensorflow=True,
        rank=0,
        # Updates need less work than gradients.
        core_share=0.25,
        engines={TFJOB: "PS"},
    ),
    TaskType(
        name=EVALUATOR,
        help="add a task that evaluates the checkpoints",
        does="evaluates",
        strategy="one_device",
        in_cluster=False,
        most=1,
        has_gpu=True,
        restarts_alone=True,
        engines={TFJOB: "Evaluator"},
    ),
)


_table = Registry("task type", ENTRY_POINTS, _ROWS)
register, rows = _table.register, _table.rows


def row(name: str) -> TaskType:
    """The row of a type.

    Raises:
      KeyError: there is none of that name.
    """
    return rows()[name]


def by_flag() -> dict[str, TaskType]:
    """The rows by the flag of `tfdist run` that asks for such tasks."""
    return {row.flag: row for row in rows().values()}


def by_rank_flag() -> dict[str, TaskType]:
    """The rows, by the script's flag that says how many of an engine's ranks are such tasks."""
    return {row.rank_flag: row for row in rows().values() if row.rank_flag}


def in_cluster() -> tuple[str, ...]:
    """The names of the types whose tasks have addresses."""
    return tuple(row.name for row in rows().values() if row.in_cluster)


def older_names() -> dict[str, str]:
    """The types by their names in the older dialect of TF_CONFIG."""
    return {row.older_name: row.name for row in rows().values() if row.older_name}


def named_by(engine: str) -> dict[str, str]:
    """The types by the names that an engine has for them."""
    return {row.engines[engine]: row.name for row in rows().values() if engine in row.engines}
