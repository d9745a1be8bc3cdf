"""A rank that waits for the other ranks, which other launchers start."""

from __future__ import annotations

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.tools.launch.local import hold_ports
from tfdist.tools.launch.ranks import wait_for_ranks
from tfdist.tools.launch.task_plan import ScriptSpec, own_place, task_plan

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.horovod, pytest.mark.timeout(60)]

JOB = ScriptSpec(
    python="python",
    script="train.py",
    strategy="horovod",
    cluster_as="horovodrun",
    flags={"startup_timeout": 7.0},
)


def config_of(index: int, port: int) -> ClusterConfig:
    cluster = Cluster(worker=(f"127.0.0.1:{port}", "127.0.0.1:1"))
    return ClusterConfig(cluster, Task("worker", index), "flags")


def test_each_start_of_the_ranks_has_a_rendezvous_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with hold_ports(1) as (port,):
        config = config_of(1, port)
        place = own_place(JOB, config, {"TF_CONFIG": "{}"})
        task = task_plan(JOB, config.cluster, config.task, place)
        assert task.environment["HOROVOD_RANK"] == "1"
        assert task.environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(port)
        assert "TF_CONFIG" in task.removed
        assert place.rendezvous is not None
        assert not wait_for_ranks(place.rendezvous, config, 0.0, "token")
        for _ in range(2):
            with place.rendezvous.serve("token"):
                assert not wait_for_ranks(place.rendezvous, config, 0.0, "token")
                first = RendezvousStore("127.0.0.1", port, "token")
                first.put("worker:0", "ready")
                assert wait_for_ranks(place.rendezvous, config, 0.0, "token")
                assert first.get("worker:1", seconds=0) == "ready"
                # It has joined this rendezvous already.
                assert not wait_for_ranks(place.rendezvous, config, 0.0, "token")
    assert "tfdist: waiting for worker:0\n" in capsys.readouterr().err


def test_a_launcher_that_restarts_the_rank_starts_tfdist_exec() -> None:
    config = config_of(0, 4001)
    place = own_place(JOB, config, {}, restarts=True)
    task = task_plan(JOB, config.cluster, config.task, place)
    flags = ("--strategy=horovod", "--cluster_as=horovodrun", "--startup_timeout=7.0")
    assert task.command == ("python", "-m", "tfdist", "exec", *flags, "train.py")
    assert "TF_CONFIG" in task.environment
