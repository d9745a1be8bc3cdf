"""Workers arranged as replicas of stages."""

from __future__ import annotations

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.strategies.in_graph.grid import grid_of

pytestmark = pytest.mark.stacks("2.15", "newest")


def cluster(workers: int, *, chief: int = 0) -> Cluster:
    return Cluster(
        chief=tuple(f"h:{port}" for port in range(1, 1 + chief)),
        worker=tuple(f"h:{port}" for port in range(10, 10 + workers)),
    )


def test_stages_are_next_to_each_other_in_a_replica() -> None:
    grid = grid_of(cluster(6), Task("worker", 0), stages=3)
    assert grid.num_replicas == 2
    assert grid.device(1, 2) == "/job:worker/replica:0/task:5/device:CPU:0"
    assert grid.workers_of(1) == (Task("worker", 1), Task("worker", 4))
    assert grid.client == "/job:worker/replica:0/task:0/device:CPU:0"


def test_a_chief_is_the_client_and_computes_nothing() -> None:
    grid = grid_of(cluster(2, chief=1), Task("chief", 0), stages=1)
    assert grid.client == "/job:chief/replica:0/task:0/device:CPU:0"
    assert grid.workers == (Task("worker", 0), Task("worker", 1))
    assert grid.num_replicas == 2


def test_a_single_process_is_its_only_worker() -> None:
    grid = grid_of(Cluster(), Task("worker", 0), stages=1)
    assert grid.devices == (grid.client,) == ("/device:CPU:0",)
    assert grid.num_replicas == 1


def test_a_process_that_is_not_connected_has_only_its_own_device() -> None:
    grid = grid_of(cluster(4), Task("worker", 0), stages=2, is_connected=False)
    assert set(grid.devices) == {"/device:CPU:0"}
    assert grid.num_replicas == 2
