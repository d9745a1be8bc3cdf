"""Memory, seconds and idle share of the splits, in cases that are computed by hand."""

from __future__ import annotations

import pytest

from tfdist.planner.costs import Candidate, Training, candidates
from tfdist.planner.model import Layer, Model

pytestmark = pytest.mark.stacks("2.15", "newest")

# 100 MB of parameters, 1 MB per example at a border; Adam.
JOB = Training(Model.even(100e6, 1e6), workers=4, ps=2, batch_size=8)


def splits(job: Training = JOB) -> dict[str, Candidate]:
    return {split.flags: split for split in candidates(job)}


def test_the_pipelines_divide_the_workers() -> None:
    assert list(splits()) == [
        "one_device",
        "multi_worker_mirrored",
        "horovod",
        "parameter_server --ps=2",
        "parameter_server --ps=2 --sync",
        "in_graph --stages=1",
        "in_graph --stages=2 --microbatches=8",
        "in_graph --stages=4 --microbatches=8",
    ]
    assert [split.tasks for split in splits().values()] == [1, 4, 4, 6, 6, 4, 4, 4]
    assert [split.replicas for split in splits().values()] == [1, 4, 4, 4, 4, 4, 2, 1]


@pytest.mark.parametrize(
    ("flags", "megabytes"),
    [
        ("one_device", 400),
        ("horovod", 400),
        # A ps: half of the weights, two slots, and the gradients of four workers.
        ("parameter_server --ps=2", 350),
        # The client: weights, two slots, the gradients of four replicas.
        ("in_graph --stages=1", 700),
        ("in_graph --stages=2 --microbatches=8", 250),
        ("in_graph --stages=4 --microbatches=8", 100),
    ],
)
def test_the_memory_of_the_fullest_task(flags: str, megabytes: float) -> None:
    assert splits()[flags].memory == megabytes * 1e6


def test_a_worker_is_fullest_when_there_are_many_ps() -> None:
    job = Training(Model.even(100e6, 1e6), workers=2, ps=8)
    assert splits(job)["parameter_server --ps=8"].memory == 200e6


def test_known_activations_are_in_the_memory() -> None:
    layers = [Layer(40e6, 1e6, 2e6), Layer(60e6, 3e6, 0)]
    job = Training(Model.of_layers(layers, 5, 6), workers=2, batch_size=8)
    assert splits(job)["one_device"].memory == 4 * 100e6 + 8 * 4e6
    assert splits(job)["in_graph --stages=2 --microbatches=8"].memory == 4 * 60e6 + 8 * 3e6


def test_untrained_weights_are_in_the_memory_once() -> None:
    layers = [Layer(10e6, 0, 0, 80e6), Layer(20e6, 0, 0), Layer(30e6, 0, 0)]
    found = splits(Training(Model.of_layers(layers, 5, 6), workers=2))
    assert found["one_device"].memory == found["horovod"].memory == 4 * 60e6 + 80e6
    # A ps: weights, two slots, the gradients of two workers.
    assert found["parameter_server --ps=1"].memory == 5 * 60e6 + 80e6
    assert found["in_graph --stages=1"].memory == 5 * 60e6 + 80e6
    # The first stage has 90 MB of weights, the second one 50 MB.
    assert found["in_graph --stages=2 --microbatches=8"].memory == 4 * 50e6
    assert found["horovod"].sent == 60e6


def test_a_worker_of_a_ps_has_the_untrained_weights() -> None:
    job = Training(Model.of_layers([Layer(10e6, 0, 0, 80e6)], 5, 6), workers=2, ps=8)
    assert splits(job)["parameter_server --ps=8"].memory == 2 * 10e6 + 80e6


@pytest.mark.parametrize(
    ("flags", "megabytes"),
    [
        ("one_device", 0),
        ("multi_worker_mirrored", 150),
        # Each ps sends 200 MB and receives 200 MB: at the same time, or one after the other.
        ("parameter_server --ps=2", 200),
        ("parameter_server --ps=2 --sync", 400),
        # The client: weights, inputs or outputs, gradients of the outputs, gradients.
        ("in_graph --stages=1", 300 + 24 + 24 + 300),
        ("in_graph --stages=2 --microbatches=8", 50 + 16 + 16 + 50),
    ],
)
def test_the_seconds_of_the_network(flags: str, megabytes: float) -> None:
    assert splits()[flags].network_seconds(1e6) == pytest.approx(megabytes)


def test_asynchronous_workers_need_the_time_of_their_own_phases() -> None:
    job = Training(Model.even(100e6, 1e6), workers=1, ps=4)
    split = splits(job)["parameter_server --ps=4"]
    assert split.network_seconds(1e6) == 200
    assert split.step_seconds(1e6, 50) == 250


def test_a_full_ps_hides_the_computation_of_asynchronous_workers() -> None:
    job = Training(Model.even(100e6, 1e6), workers=8, ps=1)
    asynchronous = splits(job)["parameter_server --ps=1"]
    assert asynchronous.step_seconds(1e6, 50) == 800
    assert splits(job)["parameter_server --ps=1 --sync"].step_seconds(1e6, 50) == 1650


def test_the_bubble_of_a_pipeline() -> None:
    split = splits()["in_graph --stages=4 --microbatches=8"]
    assert split.bubble == split.idle_share(1e6, None) == 3 / 11
    # Without a network, a step takes 11 parts of 32 / 4 / 8 s.
    assert split.step_seconds(1e30, 32) == pytest.approx(11)
    assert split.idle_share(1e30, 32) == pytest.approx(3 / 11)


def test_the_network_is_idle_time() -> None:
    assert splits()["multi_worker_mirrored"].idle_share(1e6, 50) == pytest.approx(150 / 200)
    assert splits()["one_device"].idle_share(1e6, 50) == 0


def test_microbatches_that_are_given() -> None:
    job = Training(Model.even(100e6, 1e6), workers=2, microbatches=3)
    assert "in_graph --stages=2 --microbatches=3" in splits(job)


def test_a_model_has_no_more_stages_than_layers() -> None:
    model = Model.of_layers([Layer(1, 1, 1)] * 3, 1, 1)
    found = [split.stages for split in candidates(Training(model, workers=4)) if split.stages > 1]
    assert found == [2]


def test_the_stages_of_known_layers() -> None:
    layers = [Layer(1, 10, 100), Layer(2, 20, 200), Layer(5, 50, 0)]
    first, last = Model.of_layers(layers, 1, 1).stages(2)
    assert first == Layer(3, 30, 200)
    assert last == Layer(5, 50, 0)


def test_the_stages_of_frozen_layers() -> None:
    layers = [Layer(0, 10, 100, 5), Layer(0, 20, 200, 2), Layer(1, 50, 0)]
    first, last = Model.of_layers(layers, 1, 1).stages(2)
    assert first == Layer(0, 10, 100, 5)
    assert last == Layer(1, 70, 0, 2)


def test_a_layer_without_weights_stays_with_the_layer_before_it() -> None:
    layers = [Layer(0, 1, 1), Layer(6, 10, 2), Layer(0, 20, 3), Layer(6, 30, 4), Layer(0, 40, 5)]
    model = Model.of_layers(layers, 1, 1)
    assert model.stages(2) == [Layer(6, 31, 3), Layer(6, 70, 5)]
    assert not model.can_have(3)
