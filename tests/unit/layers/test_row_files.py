"""Deltas: which rows they have, and what a model is after they were applied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.layers import DynamicEmbedding, apply_deltas
from tfdist.layers.row_files import write

pytestmark = pytest.mark.stacks("2.15", "newest")


def model_of(*tables: DynamicEmbedding) -> tf.keras.Model:
    inputs = tf.keras.Input([1], dtype="int64")
    return tf.keras.Model(inputs, [table(inputs) for table in tables])


def by_id(table: DynamicEmbedding) -> list[np.ndarray]:
    ids, rows = table.rows()
    order = np.argsort(ids)
    return [ids[order], rows[order]]


def test_deltas_are_applied_in_their_order(tmp_path: Path) -> None:
    trained = DynamicEmbedding(4, 6, name="users", free=0.4)
    served = DynamicEmbedding(4, 6, name="users")
    model_of(trained)
    model = model_of(served)
    served.set_rows(*trained.rows())
    base, clock = 100, trained.calls()
    for step, met in ((120, [1, 2, 3, 4, 5, 6]), (150, [7, 1]), (170, [8, 9])):
        trained(tf.constant(met, tf.int64), training=True)
        evicted = set(trained.evict([]).tolist())
        changed = trained.rows(since=clock)
        assert set(changed[0]) <= set(met)
        write(tmp_path / str(step), {"users": changed}, {"users": evicted}, base=base)
        base, clock = step, trained.calls()
    assert apply_deltas(model, tmp_path, 100) == 170
    assert len(trained.rows()[0]) == 4
    for own, expected in zip(by_id(served), by_id(trained), strict=True):
        np.testing.assert_array_equal(own, expected)
    assert apply_deltas(model, tmp_path, 170) == 170
    with pytest.raises(UsageError, match="dynamic tables none'; accepted: a model with the table"):
        apply_deltas(tf.keras.Sequential([tf.keras.layers.Dense(1)]), tmp_path, 100)


def test_a_delta_has_little_more_than_its_rows(tmp_path: Path) -> None:
    ids, rows = np.arange(1000), np.ones([1000, 16], "float32")
    write(tmp_path / "7", {"users": (ids, rows)}, {}, base=3)
    size = sum(path.stat().st_size for path in (tmp_path / "7").iterdir())
    assert size < 1.1 * (ids.nbytes + rows.nbytes)
