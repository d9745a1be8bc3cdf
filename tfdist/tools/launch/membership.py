"""`Membership`: which tasks of a job to start, and when all of them must restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tfdist.tools.launch.rendezvous import Rendezvous
from tfdist.tools.launch.task_plan import TaskSpec


@dataclass
class Membership:
    """The tasks of a job at each start of all tasks; here they do not change.

    Attributes:
      always: the tasks, the chief first.
      rendezvous: where the tasks of the last `tasks()` meet, which the launcher serves while they
        run; None without.
      can_change: whether the tasks can change while the job runs.
    """

    always: Sequence[TaskSpec] = ()
    rendezvous: Rendezvous | None = None
    can_change: ClassVar[bool] = False

    def tasks(self) -> Sequence[TaskSpec]:
        """The tasks to start now, the chief first; none while the job has to wait.

        Raises:
          TimeoutError: the job has waited for too long.
        """
        return self.always

    def is_there(self, task: TaskSpec) -> bool:
        """Whether one of `tasks()` is started now, and not by `moves` later."""
        return True

    def moves(self) -> tuple[Sequence[TaskSpec], Sequence[TaskSpec]]:
        """The tasks that join the others and those that leave them. Does not wait."""
        return (), ()

    def change(self) -> str | None:
        """The reason why all tasks must restart, or None. Does not wait."""
        return None
