"""`in_graph`: replicas and stages give the weights of one process, and variables are in place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import ROOT, Ended, launch

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(180)]

PROGRAM = str(ROOT / "tests/support/split_program.py")

# By number of stages, the stage of each of the four layers.
STAGES = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 4: [0, 1, 2, 3]}
SLOTS = {"momentum": 1, "adam": 2}

Reference = Callable[[str, str], list[np.ndarray]]


IN_GRAPH = ["--strategy=in_graph", "--workers=4"]


def train(path: Path, *job: str, flags: Sequence[str] = ()) -> Ended:
    """Trains with the options of `tfdist run` and the flags of the program.

    The weights are in `path` afterwards.
    """
    files = [f"--output_dir={path / 'output'}", f"--weights={path / 'weights.npz'}"]
    ended = launch(path, *job, PROGRAM, *flags, *files, deadline=90)
    assert ended.code == 0, ended.output
    return ended


def weights(path: Path) -> list[np.ndarray]:
    return list(np.load(path / "weights.npz").values())


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-6)


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


def places(kind: str, output: str) -> list[tuple[str, int]]:
    """The shape of each variable of a kind and the worker that has it."""
    found = re.findall(rf"{kind} (\S+) /job:worker/replica:0/task:(\d+)/", output)
    return [(shape, int(worker)) for shape, worker in found]


@pytest.mark.parametrize("optimizer", SLOTS)
@pytest.mark.parametrize("stages", STAGES)
def test_replicas_and_stages_equal_one_process(
    tmp_path: Path, reference: Reference, stages: int, optimizer: str
) -> None:
    flags = [f"--stages={stages}", "--microbatches=2", f"--optimizer={optimizer}"]
    ended = train(tmp_path, *IN_GRAPH, flags=flags)
    assert_equal(weights(tmp_path), reference("sequential", optimizer))

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
    idle = re.findall(r"in_graph: stages idle for (\d+)% of a step \(bound (\d+)%\)", ended.output)
    assert [bound for _, bound in idle] == [f"{(stages - 1) / (stages + 1):.0%}"[:-1] for _ in idle]
    assert len(idle) == (stages > 1)


# Each stack has some of the models.
MODELS = ["functional", "text"] if keras_is_3() else ["subclassed", "functional"]


@pytest.mark.parametrize("model", MODELS)
def test_other_models_equal_one_process(tmp_path: Path, reference: Reference, model: str) -> None:
    flags = ["--stages=2", "--microbatches=2", f"--model={model}"]
    train(tmp_path, *IN_GRAPH, flags=flags)
    assert_equal(weights(tmp_path), reference(model, "momentum"))
