"""Node lists and task counts of Slurm, ports, and the roles of ranks."""

from __future__ import annotations

import pytest

from tfdist.cluster import Task
from tfdist.cluster.ports import ports_of
from tfdist.cluster.slurm_layout import counts_of, nodes_of
from tfdist.cluster.task_counts import TaskCounts, ranks
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,1]", ["n08", "n09", "n10", "n1"]),
        ("a,b[2-3],c", ["a", "b2", "b3", "c"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("n[1-2]-ib,m", ["n1-ib", "n2-ib", "m"]),
    ],
)
def test_a_node_list(text: str, names: list[str]) -> None:
    assert nodes_of(text) == names


def test_numbers_of_tasks() -> None:
    assert counts_of("2(x2),1") == [2, 2, 1]
    with pytest.raises(UsageError):
        counts_of("2(x2")


def test_ports_lie_below_the_ephemeral_ones_and_apart() -> None:
    hosts = ["a", "a", "b"]
    one, next_ = ports_of(hosts, "17"), ports_of(hosts, "18")
    assert one[0] == one[2] == one[1] - 1
    assert not {*one} & {*next_}
    many = ports_of(["a"] * 100, "4095")
    assert min(many) >= 10240 and max(many) < 32768


def test_types_follow_the_ranks() -> None:
    tasks = ranks(5, TaskCounts(ps=2, evaluator=1))
    assert [str(task) for task in tasks] == ["ps:0", "ps:1", "evaluator:0", "chief:0", "worker:0"]
    assert ranks(2, TaskCounts()) == (Task("worker", 0), Task("worker", 1))
