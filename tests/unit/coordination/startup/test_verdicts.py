"""The report of the startup barrier: the task at fault, and which task reaches which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.startup import CHIEF, CLUSTER, PS, W0, W1, W2, A, B, C, hello
from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import names
from tfdist.coordination.startup.protocol import Reach, Report
from tfdist.coordination.startup.verdicts import Findings, details, explain

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


def findings_with(reports: Mapping[Task, Report], **more: Any) -> Findings:
    return Findings(cluster=CLUSTER, task=W0, reports=reports, **more)


def report(kind: str, *tasks: Task, detail: str = "") -> Report:
    return Report({task: Reach(kind, detail) for task in tasks})


HELLOS = {W2: hello(CLUSTER, W2)}


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        (
            findings_with({W0: report(protocol.REFUSED, W2), W1: report(protocol.REFUSED, W2)}),
            f"worker:2 has not started: nothing listens at {C}.",
        ),
        (
            findings_with({W0: report(protocol.REFUSED, W1, W2)}),
            f"worker:1 and worker:2 have not started: nothing listens at {B}, {C}.",
        ),
        (
            findings_with({W0: report(protocol.TIMED_OUT, W2)}),
            "worker:2 has not started, or the address is wrong or behind a firewall: "
            f"{C} timed out.",
        ),
        (
            findings_with({W0: report(protocol.UNRESOLVED, W2)}),
            f"worker:2 has a host name that does not resolve: {C}.",
        ),
        (
            findings_with({W0: report(protocol.REFUSED, W2), W2: Report()}, hellos=HELLOS),
            "worker:2 runs on host host-of-worker-2, process 7, but worker:0 cannot reach it at "
            f"its address {C} (refused): the address is wrong, or a firewall blocks it.",
        ),
        (
            findings_with({W0: Report(), W1: report(protocol.TIMED_OUT, W0)}),
            f"worker:0 runs, but worker:1 cannot reach it at its address {A} (timed out): the "
            "address is wrong, or a firewall blocks it.",
        ),
        (
            findings_with({W0: report(protocol.REFUSED, W2)}, hellos=HELLOS),
            "worker:2 started (on host host-of-worker-2, process 7) and has ended.",
        ),
        (
            findings_with({W0: report(protocol.RUNNING, W2)}),
            f"worker:2 is running already: a TensorFlow server answers at {C}. End the older "
            "process, or wait until it has ended.",
        ),
        (
            findings_with({W0: report(protocol.STRANGER, W2, detail="SSH-2.0")}),
            f"worker:2 is not at its address {C}: another program answers (SSH-2.0). Correct the "
            "address, or end that program.",
        ),
        (
            findings_with({W0: report(protocol.OTHER_JOB, W2, detail="ps:0 on host h, process 1")}),
            f"worker:2 is not at its address {C}: another job answers (ps:0 on host h, process 1).",
        ),
        (
            findings_with({W0: Report(complete=True), W1: Report(complete=True)}),
            "worker:2 did not report in time which tasks it reaches.",
        ),
    ],
)
def test_the_task_at_fault_is_named(findings: Findings, sentence: str) -> None:
    assert explain(findings) == sentence


def test_the_tasks_that_do_not_reach_each_other_are_listed() -> None:
    cluster = Cluster(worker=tuple(f"10.0.0.{index}:1" for index in range(40)))
    tasks = cluster.tasks()
    reports = {task: report(protocol.REFUSED, tasks[39]) for task in tasks[:39]}
    reports[W1] = report(protocol.TIMED_OUT, W2)
    assert list(details(Findings(cluster, W0, reports))) == [
        "  worker:1 → worker:2 10.0.0.2:1 timed out",
        "  worker:0, worker:2, worker:3, worker:4, worker:5 and 33 more → worker:39 10.0.0.39:1 "
        "refused",
        "  no report from worker:39",
    ]


def test_names_are_in_cluster_order() -> None:
    assert names([PS, W1, CHIEF, Task("worker", 10), W2]) == (
        "chief:0, worker:1, worker:2, worker:10 and ps:0"
    )
