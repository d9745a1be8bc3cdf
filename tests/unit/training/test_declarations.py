"""What a task declares of its data and of a call of `fit`: each field that may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training import declarations

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(120)]

PARAMS = {"epochs": 2, "steps": 10}


def model_of(units: int = 4, *, layers: int = 1, optimizer: Any = None) -> tf.keras.Model:
    dense = [tf.keras.layers.Dense(units) for _ in range(layers)]
    model = tf.keras.Sequential([tf.keras.Input([8]), *dense])
    model.compile(optimizer or tf.keras.optimizers.SGD(0.1), "mse")
    return model


def fit(model: tf.keras.Model | None = None, save_steps: int = 5, **params: Any) -> list[str]:
    declared = declarations.of_fit(model or model_of(), {**PARAMS, **params}, save_steps)
    return list(declared.values())


def test_equal_calls_of_fit_declare_the_same() -> None:
    assert fit() == fit()
    assert "float32 of shape (8, 4)" in fit()


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 3},
        {"steps": 11},
        {"save_steps": 6},
        {"model": lambda: model_of(5)},
        {"model": lambda: model_of(layers=2)},
        {"model": lambda: model_of(optimizer=tf.keras.optimizers.SGD(0.2))},
        {"model": lambda: model_of(optimizer=tf.keras.optimizers.Adam(0.1))},
    ],
)
def test_another_call_of_fit_declares_something_else(change: dict[str, Any]) -> None:
    made = {name: value() if callable(value) else value for name, value in change.items()}
    assert fit(**made) != fit()


def dataset(rank: int = 1, batch: int = 4, dtype: Any = tf.float32) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(tf.zeros([3] * rank, dtype)).repeat(20).batch(batch)


def test_batches_of_another_size_are_declared_where_their_numbers_share_the_data() -> None:
    declared = [declarations.of_data(dataset, dataset(batch=batch)) for batch in (4, 8)]
    assert declared[0] != declared[1]

    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return dataset()

    declared = [declarations.of_data(shard, dataset(batch=batch)) for batch in (4, 8)]
    assert declared[0] == declared[1]


def test_another_order_of_arrays_is_declared() -> None:
    numbers = np.arange(12, dtype=np.float32)

    def digest(array: np.ndarray) -> str:
        shard = tf.data.Dataset.from_tensor_slices((array, numbers)).shuffle(12, seed=1).batch(4)
        return declarations.of_data(dataset, shard)["the order of the training data"]

    assert digest(numbers) == digest(numbers.copy()) != digest(numbers[::-1].copy())
    # Machines may have the same files in different directories.
    names = np.array([f"/a/{number}.tfrecords" for number in range(12)])
    others = np.array([name.replace("/a", "/b/c") for name in names])
    assert digest(names) == digest(others) != digest(others[::-1].copy())


def test_another_order_of_files_is_declared(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.tfrecords") for number in range(3)]
    for path in paths:
        tf.io.TFRecordWriter(path).close()

    def digest(files: list[str]) -> str:
        shard = tf.data.TFRecordDataset(files).shard(2, 0).batch(4)
        return declarations.of_data(dataset, shard)["the order of the training data"]

    assert digest(paths) != digest(paths[::-1])


def test_another_type_of_elements_is_declared() -> None:
    types = [dataset(), dataset(rank=2), dataset(dtype=tf.int32)]
    declared = [declarations.of_data(dataset, each) for each in types]
    del declared[0]["the order of the training data"]
    assert declared[0] == {
        "the type of the training data": "float32 of rank 2",
        "the batch size": "4",
    }
    assert declared[0] not in declared[1:]
