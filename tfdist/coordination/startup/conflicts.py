"""Compares the tasks' hellos to find contradictions, which waiting does not resolve.

    find(hellos, misplaced={}, twice={})      # the sentence that names the task at fault

All functions are pure. Their sentences are the same in every task that has the same hellos.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tfdist.cluster import Cluster, Task, task_types
from tfdist.coordination.startup.protocol import Hello

# The tasks that a sentence names.
_MOST_NAMES = 6


def names(tasks: Iterable[Task]) -> str:
    """`chief:0, worker:0 and ps:1`; of many tasks only the first."""
    known = [str(task) for task in ordered(tasks)]
    if len(known) > _MOST_NAMES:
        known = [*known[: _MOST_NAMES - 1], f"{len(known) - _MOST_NAMES + 1} more"]
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def ordered(tasks: Iterable[Task]) -> list[Task]:
    """Tasks in the order of a cluster: chief, workers, ps."""
    order = [*task_types.rows()]
    return sorted(set(tasks), key=lambda task: (order.index(task.type), task.index))


def are_of_one_job(one: Hello, other: Hello) -> bool:
    """Whether two tasks are of the same job, although one may be configured wrongly.

    They have at least half of the addresses in common. Without a token, this keeps a job with one
    mistyped address from ending another job.
    """
    if one.cluster == other.cluster:
        return True
    ours, theirs = (set(entries(hello.cluster).values()) for hello in (one, other))
    return 2 * len(ours & theirs) >= min(len(ours), len(theirs))


def entries(cluster: Cluster) -> dict[Task, str]:
    """The address of each task."""
    return {task: cluster.address(task) for task in cluster.tasks()}


def find(
    hellos: Mapping[Task, Hello],
    *,
    misplaced: Mapping[Task, Hello],
    twice: Mapping[Task, tuple[Hello, Hello]],
) -> str | None:
    """Why these tasks cannot train together; None if nothing contradicts it.

    Args:
      hellos: the hello of each task, this one included.
      misplaced: by a task, the hello of another task that answers at its address.
      twice: by a task, two of its processes that run at the same time.
    """
    for task in ordered(twice):
        return _twice(task, twice[task], misplaced)
    clusters = {task: hello.cluster for task, hello in hellos.items()}
    if len(set(clusters.values())) > 1:
        return _descriptions(clusters)
    for task in ordered(misplaced):
        return _misplaced(task, misplaced, hellos)
    strategies = {task: hello.strategy for task, hello in hellos.items()}
    if sentence := _apart("--strategy", strategies):
        return sentence
    packages = sorted({name for hello in hellos.values() for name in hello.versions})
    for package in packages:
        found = {
            task: hello.versions[package]
            for task, hello in hellos.items()
            if package in hello.versions
        }
        if sentence := _apart(package, found):
            return sentence
    return None


def _twice(task: Task, processes: Sequence[Hello], misplaced: Mapping[Task, Hello]) -> str:
    one, other = sorted(hello.place for hello in processes)
    sentence = f"{task} was started twice: {one}, and {other}."
    for place in ordered(misplaced):
        if misplaced[place].task == task:
            address = misplaced[place].cluster.address(place)
            return f"{sentence} It answers at {address}, the address of {place}."
    return f"{sentence} End one of them, or give it an index of its own."


def _descriptions(clusters: Mapping[Task, Cluster]) -> str | None:
    """Names the first task whose address differs between the two most common descriptions."""
    known = {cluster: entries(cluster) for cluster in set(clusters.values())}
    ours, theirs = (known[clusters[group[0]]] for group in _groups(clusters)[:2])
    differs = next(task for task in ordered([*ours, *theirs]) if ours.get(task) != theirs.get(task))
    found = {task: known[cluster].get(differs, "none") for task, cluster in clusters.items()}
    return _apart(f"the address of {differs}", found)


def _misplaced(task: Task, misplaced: Mapping[Task, Hello], hellos: Mapping[Task, Hello]) -> str:
    hello = misplaced[task]
    address = hello.cluster.address(task)
    elsewhere = hellos.get(hello.task)
    if elsewhere is not None and elsewhere.incarnation != hello.incarnation:
        return _twice(hello.task, (elsewhere, hello), misplaced)
    back = misplaced.get(hello.task)
    if back is not None and back.task == task:
        one, other = ordered([task, hello.task])
        return (
            f"{one} and {other} are swapped: {hello.task} answers at {address}, the address of "
            f"{task} ({hello.place}), and the other way round. Swap them, or their addresses."
        )
    return (
        f"{hello.task} answers at {address}, the address of {task} ({hello.place}). "
        f"Start {task} there, or correct the addresses."
    )


def _apart(what: str, values: Mapping[Task, str]) -> str | None:
    groups = _groups(values)
    if len(groups) == 1:
        return None
    found = [f"{values[group[0]]} in {names(group)}" for group in groups]
    return f"{what} is not the same in all tasks: {', '.join(found)}. Give all tasks the same one."


def _groups(values: Mapping[Task, object]) -> list[list[Task]]:
    """The tasks with equal values together, most tasks first."""
    groups: dict[object, list[Task]] = {}
    for task in ordered(values):
        groups.setdefault(values[task], []).append(task)
    return sorted(groups.values(), key=len, reverse=True)
