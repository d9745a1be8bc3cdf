"""What a meeting without a contradiction found: who is at fault, who reaches whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.startup import CHIEF, PS, TOLD, W0, W1, W2, A, B, C, hello
from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import names
from tfdist.coordination.startup.protocol import Reach, Row
from tfdist.coordination.startup.report import Found, explain, matrix

pytestmark = pytest.mark.timeout(60)


def known(rows: Mapping[Task, Row], **more: Any) -> Found:
    return Found(cluster=TOLD, task=W0, rows=rows, **more)


def row(kind: str, *tasks: Task, detail: str = "", heard: tuple[Task, ...] = ()) -> Row:
    return Row({task: Reach(kind, detail) for task in tasks}, heard)


HEARD = {W2: hello(TOLD, W2)}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            known({W0: row(protocol.REFUSED, W2), W1: row(protocol.REFUSED, W2)}),
            f"worker:2 has not started: nothing listens at {C}.",
        ),
        (
            known({W0: row(protocol.REFUSED, W1, W2)}),
            f"worker:1 and worker:2 have not started: nothing listens at {B}, {C}.",
        ),
        (
            known({W0: row(protocol.TIMED_OUT, W2)}),
            "worker:2 has not started, or the address is wrong or behind a firewall: "
            f"{C} timed out.",
        ),
        (
            known({W0: row(protocol.UNRESOLVED, W2)}),
            f"worker:2 has a host name that does not resolve: {C}.",
        ),
        (
            known({W0: row(protocol.REFUSED, W2, heard=(W2,))}, hellos=HEARD),
            f"worker:2 runs on host host-of-worker-2, process 7, but is not reached at its address "
            f"{C} by worker:0 (refused): the address is wrong, or a firewall is between.",
        ),
        (
            known({W0: Row(), W1: row(protocol.TIMED_OUT, W0)}),
            f"worker:0 runs but is not reached at its address {A} by worker:1 (timed out): the "
            "address is wrong, or a firewall is between.",
        ),
        (
            known({W0: row(protocol.REFUSED, W2)}, hellos=HEARD),
            "worker:2 was here (on host host-of-worker-2, process 7) and has ended.",
        ),
        (
            known({W0: row(protocol.RUNNING, W2)}),
            f"worker:2 is running already: a TensorFlow server answers at {C}. End the older "
            "process, or start the job when it has ended.",
        ),
        (
            known({W0: row(protocol.STRANGER, W2, detail="SSH-2.0")}),
            f"worker:2 is not at its address {C}: another program answers (SSH-2.0). Correct the "
            "address, or end that program.",
        ),
        (
            known({W0: row(protocol.OTHER_JOB, W2, detail="ps:0 on host h, process 1")}),
            f"worker:2 is not at its address {C}: another job answers (ps:0 on host h, process 1).",
        ),
        (
            known({W0: Row(complete=True), W1: Row(complete=True)}),
            "worker:2 did not say in time whom they reach.",
        ),
    ],
)
def test_the_task_at_fault_is_named(found: Found, sentence: str) -> None:
    assert explain(found) == sentence


def test_the_matrix_says_who_reaches_whom() -> None:
    found = known({W0: row(protocol.REFUSED, W2), W1: Row()})
    assert matrix(found).splitlines() == [
        "  from \\ to  worker:0  worker:1  worker:2",
        "  worker:0   -         ok        refused",
        "  worker:1   ok        -         ok",
        "  worker:2   ?         ?         -",
        f"  worker:0 → worker:2 {C} refused",
        "  nothing is known from worker:2",
    ]


def test_of_a_large_job_the_failing_pairs_are_put_together() -> None:
    cluster = Cluster(worker=tuple(f"10.0.0.{index}:1" for index in range(40)))
    tasks = cluster.tasks()
    rows = {task: row(protocol.REFUSED, tasks[39]) for task in tasks[:39]}
    assert matrix(Found(cluster, W0, rows)).splitlines() == [
        "  worker:0, worker:1, worker:2, worker:3, worker:4 and 34 more → worker:39 10.0.0.39:1 "
        "refused",
        "  nothing is known from worker:39",
    ]


def test_names_are_in_the_order_of_a_cluster() -> None:
    assert names([PS, W1, CHIEF, Task("worker", 10), W2]) == (
        "chief:0, worker:1, worker:2, worker:10 and ps:0"
    )
