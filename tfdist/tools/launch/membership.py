"""`Membership`: the tasks of a job at each start of all tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from tfdist.tools.launch.task_plan import TaskSpec

#: Returns what the tasks need while they run.
Service = Callable[[], AbstractContextManager[object]]


class Membership(ABC):
    """The tasks of a job at each start of all tasks; by default they do not change.

    Attributes:
      can_change: whether the tasks can change while the job runs.
    """

    can_change: ClassVar[bool] = False

    @abstractmethod
    def tasks(self) -> Sequence[TaskSpec]:
        """The tasks to start now, the chief first; none while the job has to wait.

        Raises:
          TimeoutError: the job has waited for too long.
        """

    def change(self) -> str | None:
        """Why all tasks must restart; None if they need not. Does not wait."""
        return None

    def service(self) -> AbstractContextManager[object]:
        """What the tasks of the last `tasks()` need while they run."""
        return nullcontext()


@dataclass(frozen=True)
class FixedMembership(Membership):
    """The `Membership` of a job whose tasks do not change.

    Attributes:
      always: the tasks, the chief first.
      serve: what they need while they run.
    """

    always: Sequence[TaskSpec]
    serve: Service = nullcontext

    def tasks(self) -> Sequence[TaskSpec]:
        return self.always

    def service(self) -> AbstractContextManager[object]:
        return self.serve()
