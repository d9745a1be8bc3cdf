"""Variables in parts: how they are split, trained, saved, restored and exported."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tests.support.processes import ROOT, Tasks, run_by_hand
from tfdist.config.strategies.rows import ParameterServerOptions
from tfdist.strategies.parameter_server.variables import partitioner as partitions
from tfdist.strategies.parameter_server.variables.split_layers import offsets_of

# All in one pytest process, because most tests share a run of the program.
pytestmark = [
    pytest.mark.stacks("2.15", "newest"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("partitions"),
]

PROGRAM = str(ROOT / "tests" / "support" / "partitions_program.py")
IDS = np.random.default_rng(3).integers(0, 50, size=(32, 3)).astype("int32")  # as in the program


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program wrote."""
    path = tmp_path_factory.mktemp("partitions")
    task: Tasks = {"program": ([sys.executable, PROGRAM, str(path)], {})}
    ended = run_by_hand(path / "logs", task, deadline=220, copies=False)["program"]
    assert ended.code == 0, ended.output
    return path


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_checkpoint_fits_any_number_of_ps_and_of_parts(
    found: dict[str, Any], optimizer: str
) -> None:
    # Each layout has restored the checkpoint of the one before: 2 ps, 1 ps, 3 ps, one process
    # without a strategy, 2 ps.
    assert found[optimizer]["different"] == []
    assert found[optimizer]["trained"] > 0
    slots = 2 if optimizer == "adam" else 1
    # The slots are whole, too.
    for shape in ([50, 4], [12, 7]):
        assert found[optimizer]["shapes"].count(shape) >= 1 + slots


def test_the_parts_are_small_and_evenly_placed(found: dict[str, Any]) -> None:
    first, whole, *others = found["adam"]["layouts"]
    assert whole["variables"] == 5
    assert whole["largest"] == 50 * 4 * 4
    for layout, size in ((first, 128), (others[0], 96), (others[1], 64)):
        assert layout["largest"] <= size
        assert layout["variables"] > 10
        loads = layout["bytes_per_ps"]
        assert max(loads) < 1.2 * sum(loads) / len(loads)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_slots_lie_on_the_ps_of_their_variable(found: dict[str, Any], optimizer: str) -> None:
    for layout in found[optimizer]["layouts"]:
        for devices in layout["devices"]:
            assert len(devices) == (3 if optimizer == "adam" else 2)
            assert len(set(devices)) == 1
            assert "/job:ps" in devices[0]


def test_the_gradients_of_a_table_in_parts_are_sparse(found: dict[str, Any]) -> None:
    for layout in found["adam"]["layouts"]:
        kinds = {kind for name, kind in layout["gradients"] if "embeddings" in name}
        assert kinds == {"IndexedSlices"}


def test_the_exported_model_is_whole(directory: Path) -> None:
    (path,) = {file.parent for file in directory.rglob("saved_model.pb")}
    expected = np.load(directory / "predictions.npy")
    loaded = tf.saved_model.load(str(path))
    (predictions,) = loaded.signatures["serving_default"](tf.constant(IDS)).values()
    np.testing.assert_allclose(predictions, expected, rtol=1e-5, atol=1e-6)
    model = tf.keras.models.load_model(
        path / "model.keras" if keras_is_3() else path, compile=False
    )
    assert model.get_weights()[0].shape == (50, 4)
    np.testing.assert_allclose(model(IDS), expected, rtol=1e-5, atol=1e-6)


def test_layers_of_keras_3_in_parts(found: dict[str, Any]) -> None:
    if not keras_is_3():
        assert "layers" not in found
        return
    layers = found["layers"]
    assert layers["parts"] == {"table": 7, "kernel": 3, "with_constraint": 1, "of_subclass": 1}
    for name, difference in layers["differences"].items():
        assert difference < 1e-6, name
    assert layers["refused"].startswith(
        "UsageError: enable_lora of layer kernel: received 'a variable in 3 parts'; accepted: "
    )
    assert layers["deferred"] == [[50, 4], [12, 7]]
    assert "stay whole: " in layers["line"]
    assert "with_constraint" in layers["line"]
    assert "table" not in layers["line"].partition("stay whole: ")[2]


@pytest.mark.parametrize(
    ("shape", "size", "parts"),
    [
        ([100, 4], 1600, 1),
        ([100, 4], 1599, 2),
        # Of 33, 33 and 34 rows, the last one would be too large.
        ([100, 4], 33 * 16, 4),
        ([100, 4], 1, 100),
        ([3], 8, 2),
    ],
)
def test_parts_are_at_most_of_the_given_size(shape: list[int], size: int, parts: int) -> None:
    partitioner = partitions.partitioner_of(ParameterServerOptions(partition_bytes=size))
    assert partitioner is not None
    partition = partitioner(tf.TensorShape(shape), tf.float32)
    assert list(partition) == [parts, *[1] * (len(shape) - 1)]
    offsets = offsets_of(shape[0], parts)
    assert (offsets[0], offsets[-1]) == (0, shape[0])
    largest = max(end - begin for begin, end in pairwise(offsets))
    assert largest * int(np.prod(shape[1:])) * 4 <= max(size, 16)


def test_without_flags_there_is_no_partitioner() -> None:
    assert partitions.partitioner_of(ParameterServerOptions()) is None
    assert partitions.partitioner_of(ParameterServerOptions(variable_partitions=1)) is None
    partitioner = partitions.partitioner_of(ParameterServerOptions(variable_partitions=3))
    assert partitioner is not None
    assert list(partitioner(tf.TensorShape([1 << 20, 4]), tf.float32)) == [3, 1]
