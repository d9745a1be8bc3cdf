"""Contradictions between tasks: what differs, and who is in the minority."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.startup import CLUSTER, W0, W1, W2, A, B, C, hello
from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup.conflicts import are_of_one_job, clocks, find
from tfdist.coordination.startup.protocol import Hello

pytestmark = pytest.mark.timeout(60)


def hellos(**changes: Mapping[str, Any]) -> dict[Task, Hello]:
    """Of three workers, with what is different in `w0`, `w1` and `w2`."""
    return {
        task: hello(**{"cluster": CLUSTER, "task": task, **changes.get(f"w{task.index}", {})})
        for task in (W0, W1, W2)
    }


def found_in(heard: Mapping[Task, Hello], **more: Any) -> str | None:
    return find(heard, **{"misplaced": {}, "twice": {}, **more})


def test_equal_tasks_do_not_contradict_each_other() -> None:
    assert found_in(hellos()) is None


@pytest.mark.parametrize(
    ("cluster", "differs"),
    [
        (
            Cluster(worker=(A, B, "10.0.0.3:2")),
            "worker:2 is at 10.0.0.3:2 for worker:1 and at " + C,
        ),
        (Cluster(worker=(B, A, C)), f"worker:0 is at {B} for worker:1 and at {A}"),
        (Cluster(worker=(A, B)), f"worker:2 is absent for worker:1 and at {C}"),
        (Cluster(worker=(A, B, C), ps=("d:1",)), "ps:0 is at d:1 for worker:1 and absent"),
    ],
)
def test_the_minority_has_the_wrong_description(cluster: Cluster, differs: str) -> None:
    assert found_in(hellos(w1={"cluster": cluster})) == (
        "worker:1 has a different cluster description than worker:0 and worker:2: "
        f"{differs} for the others. Give all tasks the same one."
    )


def test_two_descriptions_with_as_many_tasks_each() -> None:
    heard = hellos(w1={"cluster": Cluster(worker=(A, B))})
    del heard[W2]
    assert found_in(heard) == (
        "worker:0 and worker:1 have different cluster descriptions: worker:2 is at 10.0.0.3:1 for "
        "worker:0 and absent for worker:1. Give all tasks the same one."
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"versions": {"python": "4"}}, "worker:1 has python 4; the others have 3."),
        ({"versions": {}}, "worker:1 has python none; the others have 3."),
        (
            {"strategy": "horovod"},
            "worker:1 has --strategy horovod; the others have multi_worker_mirrored.",
        ),
    ],
)
def test_the_minority_has_the_wrong_version_or_strategy(
    change: dict[str, Any], sentence: str
) -> None:
    assert found_in(hellos(w1=change)) == sentence
    heard = hellos(w1=change)
    del heard[W2]
    assert "is not the same in all tasks" in str(found_in(heard))


def test_tasks_in_each_others_places() -> None:
    heard = hellos()
    assert found_in(heard, misplaced={W1: heard[W2], W2: heard[W1]}) == (
        f"worker:1 and worker:2 are swapped: worker:2 answers at {B}, the address of worker:1 "
        "(on host host-of-worker-2, process 7), and the other way round. Swap them, or their "
        "addresses."
    )
    assert found_in(heard, misplaced={W1: heard[W0]}) == (
        f"worker:0 answers at {B}, the address of worker:1 (on host host-of-worker-0, process 7). "
        "Start worker:1 there, or correct the addresses."
    )
    again = dataclasses.replace(heard[W0], incarnation="another", pid=8)
    for twice in ({}, {W0: (heard[W0], again)}):
        assert found_in(heard, misplaced={W1: again}, twice=twice) == (
            "worker:0 was started twice: on host host-of-worker-0, process 7, and on host "
            f"host-of-worker-0, process 8. It answers at {B}, the address of worker:1."
        )


def test_a_task_that_was_started_twice() -> None:
    heard = hellos()
    assert found_in(heard, twice={W1: (heard[W1], dataclasses.replace(heard[W1], pid=8))}) == (
        "worker:1 was started twice: on host host-of-worker-1, process 7, and on host "
        "host-of-worker-1, process 8. End one of them."
    )


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"token": "another"}, False),
        ({"cluster": Cluster(worker=(A, B, "z:1"))}, True),
        ({"cluster": Cluster(worker=(A, B))}, True),
        ({"cluster": Cluster(worker=(B, C, A))}, True),
        ({"cluster": Cluster(worker=(A, "y:1", "z:1"))}, False),
        ({"cluster": Cluster(worker=("x:1", "y:1", "z:1"))}, False),
    ],
)
def test_which_tasks_are_of_one_job(changes: dict[str, Any], same: bool) -> None:
    one, other = hello(CLUSTER, W0), hello(**{"cluster": CLUSTER, "task": W1, **changes})
    assert are_of_one_job(one, other) == are_of_one_job(other, one) == same


@pytest.mark.parametrize(
    ("ahead", "sentences"),
    [
        ({W0: 0.0, W1: 4.0, W2: -4.0}, []),
        (
            {W0: 0.0, W1: 0.1, W2: 9.0},
            ["the clock of worker:2 is 8.9 s ahead of those of the others."],
        ),
        (
            {W0: 0.0, W1: 9.0, W2: 9.1},
            ["the clock of worker:0 is 9.0 s behind those of the others."],
        ),
        ({W0: 0.0, W1: 9.0}, ["the clock of worker:1 is 9.0 s ahead of that of worker:0."]),
        ({W0: 0.0, W1: -9.0}, ["the clock of worker:0 is 9.0 s ahead of that of worker:1."]),
        ({W0: 0.0, W1: 4.0}, []),
        ({W0: 0.0}, []),
    ],
)
def test_clocks_that_are_apart(ahead: dict[Task, float], sentences: list[str]) -> None:
    assert clocks(ahead) == sentences
