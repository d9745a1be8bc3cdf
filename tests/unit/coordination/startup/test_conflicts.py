"""Contradictions between tasks: what differs, and which task is in the minority."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.startup import CLUSTER, W0, W1, W2, A, B, C, hello
from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup.conflicts import are_of_one_job, find
from tfdist.coordination.startup.protocol import Hello

pytestmark = [pytest.mark.stacks("newest", horovod=("2.15",)), pytest.mark.timeout(60)]


def hellos(**changes: Mapping[str, Any]) -> dict[Task, Hello]:
    """The hellos of three workers, with changes for `w0`, `w1` and `w2`."""
    return {
        task: hello(**{"cluster": CLUSTER, "task": task, **changes.get(f"w{task.index}", {})})
        for task in (W0, W1, W2)
    }


def find_conflict(received: Mapping[Task, Hello], **more: Any) -> str | None:
    return find(received, **{"misplaced": {}, "twice": {}, **more})


def test_equal_tasks_do_not_contradict_each_other() -> None:
    assert find_conflict(hellos()) is None


@pytest.mark.parametrize(
    ("cluster", "task", "expected", "found"),
    [
        (Cluster(worker=(A, B, "10.0.0.3:2")), "worker:2", C, "10.0.0.3:2"),
        (Cluster(worker=(B, A, C)), "worker:0", A, B),
        (Cluster(worker=(A, B)), "worker:2", C, "none"),
        (Cluster(worker=(A, B, C), ps=("d:1",)), "ps:0", "none", "d:1"),
    ],
)
def test_the_address_that_is_not_the_same_is_named(
    cluster: Cluster, task: str, expected: str, found: str
) -> None:
    assert find_conflict(hellos(w1={"cluster": cluster})) == (
        f"the address of {task} is not the same in all tasks: {expected} in worker:0 and worker:2, "
        f"{found} in worker:1. Give all tasks the same one."
    )


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"versions": {"python": "4"}}, "python is not the same in all tasks: 3 in {}, 4 in {}"),
        (
            {"strategy": "horovod"},
            "--strategy is not the same in all tasks: multi_worker_mirrored in {}, horovod in {}",
        ),
    ],
)
def test_a_different_version_or_strategy_is_named(change: dict[str, Any], difference: str) -> None:
    sentence = difference.format("worker:0 and worker:2", "worker:1")
    assert find_conflict(hellos(w1=change)) == f"{sentence}. Give all tasks the same one."


def test_scripts_of_one_name_are_compared() -> None:
    scripts = {
        f"w{place}": {"versions": {"the script 'a.py'": text}}
        for place, text in ((0, "1"), (1, "2"))
    }
    assert find_conflict(hellos(**scripts)) == (
        "the script 'a.py' is not the same in all tasks: 1 in worker:0, 2 in worker:1. Give all "
        "tasks the same one."
    )
    del scripts["w1"]
    assert find_conflict(hellos(**scripts)) is None


def test_swapped_and_misplaced_tasks_are_named() -> None:
    received = hellos()
    assert find_conflict(received, misplaced={W1: received[W2], W2: received[W1]}) == (
        f"worker:1 and worker:2 are swapped: worker:2 answers at {B}, the address of worker:1 "
        "(on host host-of-worker-2, process 7), and the other way round. Swap them, or their "
        "addresses."
    )
    assert find_conflict(received, misplaced={W1: received[W0]}) == (
        f"worker:0 answers at {B}, the address of worker:1 (on host host-of-worker-0, process 7). "
        "Start worker:1 there, or correct the addresses."
    )
    again = dataclasses.replace(received[W0], incarnation="another", pid=8)
    for twice in ({}, {W0: (received[W0], again)}):
        assert find_conflict(received, misplaced={W1: again}, twice=twice) == (
            "worker:0 was started twice: on host host-of-worker-0, process 7, and on host "
            f"host-of-worker-0, process 8. It answers at {B}, the address of worker:1."
        )


def test_a_task_that_was_started_twice_is_named() -> None:
    received = hellos()
    assert find_conflict(
        received, twice={W1: (received[W1], dataclasses.replace(received[W1], pid=8))}
    ) == (
        "worker:1 was started twice: on host host-of-worker-1, process 7, and on host "
        "host-of-worker-1, process 8. End one of them, or give it an index of its own."
    )


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"cluster": Cluster(worker=(A, B, "z:1"))}, True),
        ({"cluster": Cluster(worker=(A, B))}, True),
        ({"cluster": Cluster(worker=(B, C, A))}, True),
        ({"cluster": Cluster(worker=(A, "y:1", "z:1"))}, False),
        ({"cluster": Cluster(worker=("x:1", "y:1", "z:1"))}, False),
    ],
)
def test_tasks_of_the_same_job_are_recognized(changes: dict[str, Any], same: bool) -> None:
    one, other = hello(CLUSTER, W0), hello(**{"cluster": CLUSTER, "task": W1, **changes})
    assert are_of_one_job(one, other) == are_of_one_job(other, one) == same
