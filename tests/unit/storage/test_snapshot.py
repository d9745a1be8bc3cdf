"""A checkpoint that is written by plan is the one that TensorFlow writes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.storage.snapshot import NotPlannable, SavePlan

pytestmark = pytest.mark.stacks("2.15", "newest")

Part: Any = tf.__internal__.distribute.ShardedVariable


def content(path: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(path)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def assert_saved_alike(checkpoint: tf.train.Checkpoint, directory: Path) -> SavePlan:
    plan = SavePlan(checkpoint, checkpoint.write(str(directory / "first")), None)
    assert plan.fits(checkpoint)
    assert plan.is_here
    plan.read()(str(directory / "by_plan"))
    expected = content(checkpoint.write(str(directory / "by_tensorflow")))
    found = content(str(directory / "by_plan"))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    return plan


class Words(tf.train.experimental.PythonState):
    def __init__(self) -> None:
        self.text = "one"

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: bytes) -> None:
        self.text = string_value.decode()


def trained(scope: AbstractContextManager[Any]) -> tf.keras.Model:
    with scope:
        model = tf.keras.Sequential(
            [
                tf.keras.Input([4]),
                tf.keras.layers.Embedding(50, 3),
                tf.keras.layers.Flatten(),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dropout(0.5),
                tf.keras.layers.Dense(1, dtype="float32"),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    words = np.arange(32).reshape(8, 4)
    model.fit(words, np.ones([8, 1]), batch_size=4, verbose=0)
    return model


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_model_and_its_optimizer(policy: str, is_mirrored: bool, tmp_path: Path) -> None:
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if is_mirrored else None
        model = trained(nullcontext() if strategy is None else strategy.scope())
        assert_saved_alike(tf.train.Checkpoint(model=model, words=Words()), tmp_path)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def test_the_parts_of_a_split_variable(tmp_path: Path) -> None:
    parts = [tf.Variable(np.full([rows, 2], rows, np.float32)) for rows in (3, 2)]
    assert_saved_alike(tf.train.Checkpoint(table=Part(parts, name="table")), tmp_path)
    whole = tf.Variable(tf.zeros([5, 2]))
    tf.train.Checkpoint(table=whole).restore(str(tmp_path / "by_plan")).expect_partial()
    assert whole[:, 0].numpy().tolist() == [3, 3, 3, 2, 2]


def test_a_state_is_that_of_its_time(tmp_path: Path) -> None:
    words, variable = Words(), tf.Variable([1.0])
    checkpoint = tf.train.Checkpoint(words=words, variable=variable)
    plan = assert_saved_alike(checkpoint, tmp_path)
    words.text = "two"
    variable.assign([2.0])
    write = plan.read()
    words.text = "three"
    variable.assign([3.0])
    write(str(tmp_path / "second"))
    checkpoint.restore(str(tmp_path / "second"))
    assert (words.text, variable.numpy().tolist()) == ("two", [2.0])


def test_a_new_object_needs_a_new_plan(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(one=tf.Variable(1.0))
    plan = assert_saved_alike(checkpoint, tmp_path)
    checkpoint.two = tf.Variable(2.0)
    assert not plan.fits(checkpoint)


def test_a_table_has_no_plan(tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    checkpoint = tf.train.Checkpoint(table=table)
    path = checkpoint.write(str(tmp_path / "first"))
    with pytest.raises(NotPlannable, match="MutableHashTable"):
        SavePlan(checkpoint, path, None)
