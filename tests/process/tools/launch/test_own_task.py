"""A rank whose launcher waits for the launchers of the other ranks."""

from __future__ import annotations

from contextlib import closing

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.tools.launch.local import hold_ports
from tfdist.tools.launch.rank_membership import RankMembership
from tfdist.tools.launch.task_plan import ScriptSpec, own_place, task_plan

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.horovod, pytest.mark.timeout(60)]


def members_of(index: int, port: int, timeout: float = 60.0) -> RankMembership:
    cluster = Cluster(worker=(f"127.0.0.1:{port}", "127.0.0.1:1"))
    config = ClusterConfig(cluster, Task("worker", index), "flags")
    job = ScriptSpec(
        python="python", script="train.py", strategy="horovod", cluster_as="horovodrun"
    )
    place = own_place(job, config, {"TF_CONFIG": "{}"}, restarts=True)
    task = task_plan(job, cluster, config.task, place)
    return RankMembership(config, task, timeout, "token")


def test_each_start_of_the_ranks_has_a_rendezvous_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        hold_ports(1) as (port,),
        closing(members_of(0, port)) as first,
        closing(members_of(1, port)) as second,
    ):
        assert second.tasks() == ()
        assert first.tasks() == ()
        for _ in range(2):
            (task,) = second.tasks()
            assert task.environment["HOROVOD_RANK"] == "1"
            assert task.environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(port)
            assert "TF_CONFIG" in task.removed
            # It has joined this rendezvous already.
            assert second.tasks() == ()
            (task,) = first.tasks()
            assert task.environment["HOROVOD_SIZE"] == "2"
            assert first.tasks() == ()
    said = capsys.readouterr().err
    assert "tfdist: waiting for worker:0\n" in said
    assert "tfdist: waiting for worker:1\n" in said


@pytest.mark.parametrize("index", [0, 1])
def test_the_wait_ends(index: int) -> None:
    waited = rf"\(--startup_timeout\) for worker:{1 - index}"
    with (
        hold_ports(1) as (port,),
        closing(members_of(index, port, timeout=0.0)) as members,
        pytest.raises(TimeoutError, match=waited),
    ):
        members.tasks()
