"""The roles of the ranks of a job, in the order of the ranks: ps, evaluator, chief, workers.

    roles_of([6], Roles(num_ps=2, evaluator=True))    # ps:0, ps:1, evaluator:0, chief:0, …
    roles_of([2, 3], Roles(), ("ps", "worker"))       # of two components: ps:0, ps:1, worker:0, …

A job with ps or an evaluator has a chief.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.cluster.cluster import TASK_TYPES, Task
from tfdist.errors import UsageError

#: The role of each component of a job, in order, separated by commas.
ROLES_VARIABLE = "TFDIST_ROLES"


@dataclass(frozen=True)
class Roles:
    """How many ranks have which role; the others are workers.

    Attributes:
      num_ps: the number of ps.
      evaluator: whether there is an evaluator.
    """

    num_ps: int = 0
    evaluator: bool = False


def named_roles(environ: Mapping[str, str], roles: Roles) -> tuple[str, ...]:
    """The role of each component, from `ROLES_VARIABLE`; empty if it is not set.

    Raises:
      UsageError: a role is unknown, or a flag gives roles, too.
    """
    text = environ.get(ROLES_VARIABLE, "")
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if not {*names} <= {*TASK_TYPES}:
        raise UsageError(
            ROLES_VARIABLE,
            received=text,
            accepted=f"{', '.join(TASK_TYPES)}, for each component, separated by commas",
            remedy="Correct the roles.",
        )
    if names and roles != Roles():
        raise UsageError(
            "--num_ps" if roles.num_ps else "--evaluator",
            received=roles.num_ps or roles.evaluator,
            accepted=f"only without {ROLES_VARIABLE}, which is {text}",
            remedy="Leave one of them out.",
        )
    return names


def roles_of(
    components: Sequence[int], roles: Roles, names: Sequence[str] = ()
) -> tuple[Task, ...]:
    """The task of each rank.

    Args:
      components: the number of ranks of each component of the job.
      roles: how many ranks have which role.
      names: the role of each component instead; empty to use the numbers.

    Raises:
      UsageError: there are too few ranks, or another number of components than of roles.
    """
    if names:
        if len(names) != len(components):
            raise UsageError(
                ROLES_VARIABLE,
                received=",".join(names),
                accepted=f"{len(components)} roles, one for each component of the job",
                remedy="Name the role of each component.",
            )
        each = [name for name, count in zip(names, components, strict=True) for _ in range(count)]
    else:
        ranks = sum(components)
        has_chief = bool(roles.num_ps or roles.evaluator)
        each = ["ps"] * roles.num_ps + ["evaluator"] * roles.evaluator + ["chief"] * has_chief
        if has_chief and len(each) > ranks:
            raise UsageError(
                "--num_ps",
                received=roles.num_ps,
                accepted=f"fewer ps: the job has {ranks} ranks, of which one is the chief"
                + (" and one the evaluator" if roles.evaluator else ""),
                remedy="Start more tasks, or ask for fewer ps.",
            )
        each += ["worker"] * (ranks - len(each))
    seen: Counter[str] = Counter()
    tasks = []
    for name in each:
        tasks.append(Task(name, seen[name]))
        seen[name] += 1
    return tuple(tasks)
