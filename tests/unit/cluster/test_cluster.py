"""Cluster and Task: validation, properties, and round trips through TF_CONFIG and flags."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.environments.host_flags import from_flags
from tfdist.cluster.environments.tf_config import from_tf_config
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")

A, B, C, D = "10.0.0.1:2222", "b.example.org:2222", "[fe80::1]:2222", "d:1"
FULL = Cluster(chief=(A,), worker=(B, C), ps=(D,))


def checked(error: pytest.ExceptionInfo[UsageError]) -> tuple[str, Any]:
    """Checks that an error message is complete; returns its field and value."""
    message = str(error.value)
    assert message.startswith(f"{error.value.field}: received {error.value.received!r}; accepted: ")
    assert error.value.accepted in message
    assert message.endswith(error.value.remedy)
    assert error.value.remedy.endswith((".", "?"))
    return error.value.field, error.value.received


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1",
        "worker-0.job.svc.cluster.local:65535",
        "under_score.example:80",
        "10.0.0.1:2222",
        "[::1]:2222",
        "[::ffff:10.0.0.1]:2222",
        "7:7",
    ],
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert Cluster(worker=(address,)).worker == (address,)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("10.0.0.1", "Add the task's port."),
        ("", "Add the task's port."),
        ("http://10.0.0.1:2222", "Remove the scheme."),
        ("grpc://10.0.0.1:2222", "Remove the scheme."),
        (":2222", "Correct the host name."),
        ("a b:2222", "Correct the host name."),
        ("-a:2222", "Correct the host name."),
        ("a/b:2222", "Correct the host name."),
        ("::1:2222", "Put an IPv6 host in brackets."),
        ("a:", "Correct the port."),
        ("a:0", "Correct the port."),
        ("a:65536", "Correct the port."),
        ("a:-1", "Correct the port."),
        ("a:+1", "Correct the port."),
        ("a: 1", "Correct the port."),
        ("a:1.0", "Correct the port."),
        ("a:http", "Correct the port."),
        ("a:²", "Correct the port."),
        (2222, "Write it as a string."),
        (None, "Write it as a string."),
        (["a:1"], "Write it as a string."),
    ],
)
@pytest.mark.parametrize("job", ["chief", "worker"])
def test_any_other_address_is_rejected_with_a_remedy(job: str, address: Any, remedy: str) -> None:
    with pytest.raises(UsageError) as error:
        Cluster(**{job: (address,)})

    assert checked(error) == (f"cluster.{job}[0]", address)
    assert error.value.remedy == remedy


def test_a_link_local_host_may_have_a_zone() -> None:
    assert Cluster(worker=("[fe80::1%eth0]:2222",)).worker == ("[fe80::1%eth0]:2222",)


def test_a_host_with_a_line_break_is_rejected() -> None:
    with pytest.raises(UsageError) as error:
        Cluster(worker=("a\n:2222",))

    assert checked(error) == ("cluster.worker[0]", "a\n:2222")


@pytest.mark.parametrize("addresses", ["10.0.0.1:2222", {"0": A}, 3])
def test_addresses_must_be_a_list(addresses: Any) -> None:
    with pytest.raises(UsageError) as error:
        Cluster(worker=addresses)

    assert checked(error) == ("cluster.worker", addresses)


@pytest.mark.parametrize(
    ("jobs", "field", "received"),
    [
        ({"worker": (A, B, A)}, "cluster.worker[2]", A),
        ({"chief": (A,), "worker": (A,)}, "cluster.worker[0]", A),
        ({"worker": (A,), "ps": (A,)}, "cluster.ps[0]", A),
        ({"chief": (A, B)}, "cluster.chief", [A, B]),
        ({"ps": (A,)}, "cluster.worker", []),
    ],
)
def test_an_invalid_cluster_is_rejected(jobs: Any, field: str, received: Any) -> None:
    with pytest.raises(UsageError) as error:
        Cluster(**jobs)

    assert checked(error) == (field, received)


def test_the_error_for_a_duplicate_address_names_the_other_task() -> None:
    with pytest.raises(UsageError, match=r"cluster\.chief\[0\] has the same address"):
        Cluster(chief=(A,), worker=(B, A))


@pytest.mark.parametrize("same", ["d:01", "D:1"])
def test_two_spellings_of_an_address_are_duplicates(same: str) -> None:
    with pytest.raises(UsageError) as error:
        Cluster(worker=(D, same))

    assert checked(error) == ("cluster.worker[1]", same)


@pytest.mark.parametrize(
    ("task_type", "index", "field"),
    [
        ("master", 0, "task.type"),
        ("Worker", 0, "task.type"),
        ("", 0, "task.type"),
        (None, 0, "task.type"),
        (["worker"], 0, "task.type"),
        ("worker", -1, "task.index"),
        ("worker", "0", "task.index"),
        ("worker", 0.0, "task.index"),
        ("worker", True, "task.index"),
        ("worker", None, "task.index"),
    ],
)
def test_an_invalid_task_is_rejected(task_type: Any, index: Any, field: str) -> None:
    with pytest.raises(UsageError) as error:
        Task(task_type, index)

    assert checked(error) == (field, index if field == "task.index" else task_type)


@pytest.mark.parametrize(
    ("cluster", "task", "field", "accepted"),
    [
        (FULL, Task("worker", 2), "task.index", "0 to 1 (the job has 2 worker)"),
        (FULL, Task("chief", 1), "task.index", "0 to 0 (the job has 1 chief)"),
        (FULL, Task("evaluator", 1), "task.index", "0 to 0 (the job has 1 evaluator)"),
        (Cluster(worker=(A,)), Task("ps", 0), "task.type", "worker, evaluator"),
        (Cluster(worker=(A,)), Task("chief", 0), "task.type", "worker, evaluator"),
    ],
)
def test_a_task_outside_the_cluster_is_rejected(
    cluster: Cluster, task: Task, field: str, accepted: str
) -> None:
    with pytest.raises(UsageError) as error:
        cluster.check(task)

    assert checked(error)[0] == field
    assert error.value.accepted == accepted


def test_every_task_of_a_cluster_and_an_evaluator_belong_to_it() -> None:
    for task in (*FULL.tasks(), Task("evaluator", 0)):
        FULL.check(task)


def test_cluster_and_task_are_frozen_and_hashable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL._addresses = ()  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Task("ps", 0).index = 1  # type: ignore[misc]
    listed = Cluster(chief=[A], worker=[B, C], ps=[D])
    assert {FULL, listed} == {FULL}
    assert {Task("ps", 0), Task("ps", 0)} == {Task("ps", 0)}


@pytest.mark.parametrize(
    ("cluster", "chief", "training", "tasks", "text"),
    [
        (Cluster(), "worker:0", [], [], "this process alone"),
        (Cluster(chief=(A,)), "chief:0", ["chief:0"], ["chief:0"], "1 chief"),
        (
            Cluster(worker=(A, B)),
            "worker:0",
            ["worker:0", "worker:1"],
            ["worker:0", "worker:1"],
            "2 worker",
        ),
        (
            FULL,
            "chief:0",
            ["chief:0", "worker:0", "worker:1"],
            ["chief:0", "worker:0", "worker:1", "ps:0"],
            "1 chief + 2 worker + 1 ps",
        ),
    ],
)
def test_chief_training_tasks_and_all_tasks(
    cluster: Cluster, chief: str, training: list[str], tasks: list[str], text: str
) -> None:
    assert str(cluster.chief_task) == chief
    assert [str(task) for task in cluster.training_tasks] == training
    assert [str(task) for task in cluster.tasks()] == tasks
    assert str(cluster) == text
    assert bool(cluster) == bool(tasks)


def test_each_task_has_its_address() -> None:
    assert [FULL.address(task) for task in FULL.tasks()] == [A, B, C, D]
    assert FULL.jobs() == {"chief": [A], "worker": [B, C], "ps": [D]}
    assert Cluster(worker=(A,)).jobs() == {"worker": [A]}


def test_an_address_is_split_and_its_brackets_are_removed() -> None:
    assert host_and_port(A) == ("10.0.0.1", 2222)
    assert host_and_port(C) == ("fe80::1", 2222)


def hosts() -> st.SearchStrategy[str]:
    names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,20}[A-Za-z0-9])?", fullmatch=True)
    return st.one_of(
        names,
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map("[{}]".format),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    addresses = draw(
        st.lists(
            st.builds("{}:{}".format, hosts(), st.integers(1, 65535)),
            min_size=1,
            max_size=9,
            unique_by=str.lower,
        )
    )
    chief = draw(st.integers(0, 1))
    workers = draw(st.integers(1 - chief, len(addresses) - chief))
    ps = len(addresses) - chief - workers if workers else 0
    first_ps = chief + workers
    return Cluster(
        chief=tuple(addresses[:chief]),
        worker=tuple(addresses[chief:first_ps]),
        ps=tuple(addresses[first_ps : first_ps + ps]),
    )


def read_flags(arguments: list[str]) -> ClusterConfig | None:
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    return from_flags(ClusterFlags(**given))


@settings(deadline=None)
@given(clusters())
def test_tf_config_and_flags_round_trip(cluster: Cluster) -> None:
    for task in (*cluster.tasks(), Task("evaluator", 0)):
        environ = {"TF_CONFIG": cluster.tf_config(task)}
        assert from_tf_config(environ) == ClusterConfig(cluster, task, "TF_CONFIG")
        assert read_flags(cluster.flags(task)) == ClusterConfig(cluster, task, "flags")
