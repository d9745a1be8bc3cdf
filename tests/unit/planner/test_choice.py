"""The split that is chosen, and why."""

from __future__ import annotations

import pytest

from tfdist.planner.choice import Choice, choose
from tfdist.planner.costs import Training, candidates
from tfdist.planner.model import Model

pytestmark = pytest.mark.stacks("2.15", "newest")


def chosen(
    workers: int = 4,
    border: float = 1e3,
    memory: float | None = None,
    replica_seconds: float | None = None,
) -> Choice:
    """The choice for 100 MB of parameters, with 8 examples per replica, at 1 MB/s."""
    job = Training(Model.even(100e6, border), workers=workers, batch_size=8)
    return choose(
        candidates(job),
        bandwidth=1e6,
        batch_size=8,
        memory=memory,
        replica_seconds=replica_seconds,
    )


def flags(choice: Choice) -> str:
    return choice.split.flags if choice.split else ""


def test_one_worker_needs_no_network() -> None:
    assert flags(chosen(workers=1)) == "one_device"


def test_small_activations_cross_stages_and_large_ones_do_not() -> None:
    assert flags(chosen(border=1e3)) == "in_graph --stages=4 --microbatches=8"
    found = chosen(border=100e6)
    assert flags(found) == "multi_worker_mirrored"
    # 150 s for 32 examples.
    assert found.reason == (
        "the fewest seconds of network per example: 4.69 s; equally good here: horovod"
    )


def test_a_slow_network_is_left_alone_if_the_computation_is_known() -> None:
    found = chosen(border=100e6, replica_seconds=1)
    assert flags(found) == "one_device"
    assert found.reason == "the most examples/s: 8"


def test_long_steps_are_worth_the_network() -> None:
    found = chosen(border=100e6, replica_seconds=1000)
    assert flags(found) == "multi_worker_mirrored"


def test_what_does_not_fit_is_not_chosen() -> None:
    # An all-reduce needs 400 MB, two stages 250 MB, four stages 100 MB.
    found = chosen(border=100e6, memory=300e6)
    assert flags(found).startswith("in_graph --stages=")
    assert found.reason.startswith(
        "the fewest seconds of network per example of the 2 splits that fit in 300 MB and use all "
        "workers: "
    )


def test_the_reason_says_which_splits_are_compared() -> None:
    found = chosen(border=100e6, memory=650e6, replica_seconds=1000)
    assert flags(found) == "multi_worker_mirrored"
    # One device, two all-reduces and two pipelines; a ps and one stage need 700 MB.
    assert found.reason.startswith("the most examples/s of the 5 splits that fit in 650 MB: ")
    found = chosen(border=100e6, memory=650e6)
    assert "of the 4 splits that fit in 650 MB and use all workers: " in found.reason


def test_nothing_fits() -> None:
    found = chosen(memory=1e6)
    assert found.split is None
    assert found.reason == (
        "none fits; in_graph --stages=4 --microbatches=8 needs the least memory, 100 MB"
    )
