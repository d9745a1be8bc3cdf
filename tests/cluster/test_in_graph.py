"""`in_graph`: replicas and stages give the weights of one process, and variables are in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.split_jobs import assert_close, places, train, weights

pytestmark = [
    pytest.mark.stacks("2.15", "2.21"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("in_graph"),
]

IN_GRAPH = ["--strategy=in_graph", "--workers=4"]

# By number of stages, the stage of each of the four layers.
STAGES = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 4: [0, 1, 2, 3]}
SLOTS = {"momentum": 1, "adam": 2}

Reference = Callable[[str, str], list[np.ndarray]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The weights that one process ends with, by model and optimizer."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}

    def train_once(model: str, optimizer: str) -> list[np.ndarray]:
        if (model, optimizer) not in found:
            path = tmp_path_factory.mktemp("one_process")
            flags = [f"--model={model}", f"--optimizer={optimizer}"]
            train(path, "--strategy=one_device", flags=flags)
            found[model, optimizer] = weights(path)
        return found[model, optimizer]

    return train_once


@pytest.mark.parametrize(
    ("stages", "optimizer"), [(4, "adam") if keras_is_3() else (2, "momentum")]
)
def test_replicas_and_stages_equal_one_process(
    tmp_path: Path, reference: Reference, stages: int, optimizer: str
) -> None:
    flags = [f"--stages={stages}", "--microbatches=2", f"--optimizer={optimizer}"]
    ended = train(tmp_path, *IN_GRAPH, flags=flags)
    assert_close(weights(tmp_path), reference("sequential", optimizer))

    # A kernel and a bias for each layer, on the workers of replica 0.
    variables = places("variable", ended.output)
    assert [worker for _, worker in variables] == list(np.repeat(STAGES[stages], 2))
    slots = places("slot", ended.output)
    assert Counter(slots) == Counter(variables * SLOTS[optimizer])

    workers = [
        ", ".join(f"worker:{worker}" for worker in range(stage, 4, stages))
        for stage in range(stages)
    ]
    for stage, own in enumerate(workers):
        assert f"in_graph: stage {stage} on {own}: " in ended.output


# Each stack has some of the models.
MODELS = ["text"] if keras_is_3() else ["subclassed", "functional"]
RECOMPUTE = ["--stages=2", "--microbatches=4", "--recompute"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        *[(model, ["--stages=2", "--microbatches=2"]) for model in MODELS],
        ("sequential" if keras_is_3() else "functional", RECOMPUTE),
    ],
)
def test_other_models_equal_one_process(
    tmp_path: Path, reference: Reference, model: str, options: list[str]
) -> None:
    flags = [*options, f"--model={model}"]
    train(tmp_path, *IN_GRAPH, flags=flags)
    assert_close(weights(tmp_path), reference(model, "momentum"))
