"""The bytes of a step, by the formulas of the docstrings and in cases that are counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.planner.model import Layer
from tfdist.planner.traffic import Traffic, all_reduce, in_graph, parameter_servers, server, worker

pytestmark = pytest.mark.stacks("2.15", "newest")

TASKS = st.integers(1, 12)
SIZES = st.integers(1, 1000)


def both(traffic: Traffic, task: str) -> tuple[float, float]:
    return traffic.sent(task), traffic.received(task)


@given(SIZES, TASKS)
def test_a_ring_is_even(size: int, workers: int) -> None:
    traffic = all_reduce(size, workers)
    for rank in range(workers):
        expected = 2 * (workers - 1) / workers * size
        assert both(traffic, worker(rank)) == pytest.approx((expected, expected))
    assert traffic.total == pytest.approx(2 * (workers - 1) * size)


@given(SIZES, TASKS, TASKS)
def test_each_worker_reads_and_returns_all_weights(size: int, workers: int, ps: int) -> None:
    traffic = parameter_servers(size, workers, ps)
    for rank in range(workers):
        assert both(traffic, worker(rank)) == (size, size)
    for index in range(ps):
        expected = workers * size / ps
        assert both(traffic, server(index)) == pytest.approx((expected, expected))
    assert traffic.total == pytest.approx(2 * workers * size)


@given(SIZES, TASKS, SIZES, SIZES)
def test_one_stage_has_everything_in_the_client(
    weights: int, replicas: int, inputs: int, outputs: int
) -> None:
    stages = [Layer(weights, None, 7)]
    traffic = in_graph(stages, replicas, batch_size=3, input_bytes=inputs, output_bytes=outputs)
    others = replicas - 1
    assert both(traffic, worker(0)) == (
        others * (weights + 3 * inputs + 3 * outputs),
        others * (weights + 3 * outputs),
    )
    for rank in range(1, replicas):
        sent, received = weights + 3 * outputs, weights + 3 * inputs + 3 * outputs
        assert both(traffic, worker(rank)) == (sent, received)


def test_two_replicas_of_two_stages() -> None:
    """Workers 0 and 1 are one replica and own 100 and 10; workers 2 and 3 are the other one."""
    stages = [Layer(100, None, 4), Layer(10, None, 0)]
    traffic = in_graph(stages, 2, batch_size=2, input_bytes=3, output_bytes=5)
    border, inputs, outputs = 2 * 4, 2 * 3, 2 * 5
    assert both(traffic, worker(0)) == (
        100 + inputs + border + 2 * outputs,
        100 + border + 2 * outputs,
    )
    assert both(traffic, worker(1)) == (10 + border + outputs, 10 + border + outputs)
    assert both(traffic, worker(2)) == (100 + border, 100 + inputs + border)
    assert both(traffic, worker(3)) == (10 + border + outputs, 10 + border + outputs)


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(1, 4), SIZES)
def test_all_that_is_sent_is_received(weights: list[int], replicas: int, batch_size: int) -> None:
    stages = [Layer(size, None, 2 * size) for size in weights]
    traffic = in_graph(stages, replicas, batch_size=batch_size, input_bytes=1, output_bytes=2)
    assert sum(map(traffic.received, traffic.tasks)) == traffic.total
    assert set(traffic.tasks) <= {worker(rank) for rank in range(replicas * len(weights))}
