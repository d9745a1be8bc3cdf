"""How many tasks of each type a job has, and which rank of an engine is which task.

    counts = TaskCounts(worker=2, ps=1)
    counts.tasks()                           # worker:0, worker:1, ps:0
    counts.cluster(["a:1", "b:1", "c:1"])    # their addresses
    counts.with_chief().in_order_of_ranks()  # {"ps": 1, "chief": 1, "worker": 2}

    ranks(6, TaskCounts(ps=2, evaluator=1))    # ps:0, ps:1, evaluator:0, chief:0, worker:0, …

Where an engine numbers the tasks, a job with ps or an evaluator has a chief.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from tfdist.cluster import task_types
from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.task_types import CHIEF, WORKER, TaskType
from tfdist.errors import refuse


class TaskCounts(Counter[str]):
    """The numbers of tasks by type, in the order of a cluster; 0 for a type that is left out."""

    def __init__(self, given: Iterable[tuple[str, int]] = (), /, **more: int | None) -> None:
        super().__init__()
        numbers = {**dict(given), **more}
        # Without numbers it asks no table, which an import may still be filling.
        for name in task_types.rows() if numbers else ():
            if number := numbers.get(name):
                self[name] = int(number)

    def kinds(self) -> list[TaskType]:
        """The types of which there is a task."""
        return [task_types.row(name) for name in self]

    def tasks(self) -> tuple[Task, ...]:
        """The tasks, the chief first."""
        return tuple(Task(name, index) for name, count in self.items() for index in range(count))

    @property
    def training(self) -> int:
        """The number of tasks that train."""
        return sum(self[kind.name] for kind in self.kinds() if kind.trains)

    @property
    def in_cluster(self) -> int:
        """The number of tasks that have addresses."""
        return sum(self[kind.name] for kind in self.kinds() if kind.in_cluster)

    def cluster(self, addresses: Iterable[str]) -> Cluster:
        """The cluster of the tasks that have addresses, in their order."""
        given = iter(addresses)
        names = [kind.name for kind in self.kinds() if kind.in_cluster]
        return Cluster(**{name: tuple(islice(given, self[name])) for name in names})

    def with_chief(self) -> TaskCounts:
        """These counts, with one chief if any task does not train."""
        return self if self.training == self.total() else TaskCounts(**{**self, CHIEF: 1})

    def with_workers(self, number: int) -> TaskCounts:
        """These counts, with `number` workers if they have none."""
        return TaskCounts(**{WORKER: number, **self})

    def in_order_of_ranks(self) -> dict[str, int]:
        """The numbers of tasks by type, in the order of the ranks."""
        order = sorted(self.kinds(), key=lambda kind: kind.rank)
        return {kind.name: self[kind.name] for kind in order}

    def rank_flags(self) -> dict[str, int]:
        """The script's flags that make an engine's ranks these tasks: values by flag name."""
        kinds = map(task_types.row, self.in_order_of_ranks())
        return {kind.rank_flag: self[kind.name] for kind in kinds if kind.rank_flag}


def ranks(total: int, counts: TaskCounts) -> tuple[Task, ...]:
    """The task of each rank.

    Args:
      total: the number of ranks.
      counts: the numbers of tasks that do not train; the other ranks are the chief and workers.

    Raises:
      UsageError: there are too few ranks.
    """
    given = counts.with_chief()
    if given.total() > total:
        flag, number = next(iter(counts.rank_flags().items()))
        accepted = f"fewer tasks: the job has {total} ranks, of which one is the chief"
        remedy = "Start more tasks, or ask for fewer that do not train."
        refuse({flag: number}, accepted, remedy)
    numbers = given.in_order_of_ranks()
    numbers[WORKER] = numbers.get(WORKER, 0) + total - given.total()
    return tuple(Task(name, index) for name, count in numbers.items() for index in range(count))
