"""`FeatureEmbeddings`: the rows of many features, by kinds of ids, weights and combiners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.errors import UsageError
from tfdist.layers import FeatureConfig, FeatureEmbeddings, TableConfig
from tfdist.layers.feature_embeddings import _OfTables

pytestmark = pytest.mark.stacks("2.15", "newest")

_random = np.random.default_rng(0)
A, B, C = (_random.normal(size=size).astype("float32") for size in ([10, 4], [7, 4], [5, 3]))


def rows(value: np.ndarray) -> Callable[..., tf.Tensor]:
    return lambda shape, dtype=None, **part: tf.constant(value)


def layer() -> FeatureEmbeddings:
    a = TableConfig("a", 10, 4, initializer=rows(A))
    b = TableConfig("b", 7, 4, initializer=rows(B), combiner="sum")
    c = TableConfig("c", 5, 3, initializer=rows(C), combiner="sqrtn")
    tables = {"one": a, "several": b, "ragged": a, "sparse": c}
    features = {name: FeatureConfig(table) for name, table in tables.items()}
    return FeatureEmbeddings(features, name="tables")


IDS = {
    "one": np.array([1, 9, 3]),
    "several": np.array([[1, 2], [0, 6], [3, 3]]),
    "ragged": tf.ragged.constant([[1, 2], [], [9]], dtype=tf.int64),
    "sparse": tf.sparse.SparseTensor(
        [[0, 0], [0, 1], [2, 0]], tf.constant([4, 0, 1], tf.int64), [3, 2]
    ),
}


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_rows_of_each_kind_of_ids() -> None:
    tables = layer()
    found = tables(IDS)
    assert list(found) == ["one", "several", "ragged", "sparse"]
    assert_close(found["one"], A[IDS["one"]])
    assert_close(found["several"], B[IDS["several"]].sum(1))
    assert_close(found["ragged"], [A[[1, 2]].mean(0), 0 * A[0], A[9]])
    assert_close(found["sparse"], [(C[4] + C[0]) / 2**0.5, 0 * C[0], C[1]])
    # Tables of one dimension are one variable.
    assert [tuple(each.shape) for each in tables.variables] == [(17, 4), (5, 3)]


def test_features_of_one_table_may_be_of_different_lengths() -> None:
    table = TableConfig("a", 10, 4, initializer=rows(A))
    tables = FeatureEmbeddings({"query": FeatureConfig(table), "candidate": FeatureConfig(table)})
    found = tables({"query": tf.constant([3]), "candidate": tf.constant([1, 9, 3])})
    assert_close(found["query"], A[[3]])
    assert_close(found["candidate"], A[[1, 9, 3]])


def test_the_rows_with_weights() -> None:
    weights = {
        "one": np.array([2.0, 3.0, 4.0]),
        "several": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        "ragged": tf.ragged.constant([[1.0, 3.0], [], [2.0]]),
        "sparse": IDS["sparse"].with_values(tf.constant([3.0, 4.0, 2.0])),
    }
    found = layer()(IDS, weights=weights)
    assert_close(found["one"], A[IDS["one"]])
    assert_close(found["several"][2], 11 * B[3])
    assert_close(found["ragged"], [(A[1] + 3 * A[2]) / 4, 0 * A[0], A[9]])
    assert_close(found["sparse"][0], (3 * C[4] + 4 * C[0]) / 5)


@pytest.mark.parametrize("beyond", [-1, 10, 17])
def test_an_id_beyond_its_table_is_no_row_of_the_next_one(beyond: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        layer()({**IDS, "one": np.array([beyond, 0, 0])})


def test_the_parts_of_a_group_are_those_of_its_whole() -> None:
    tables = [TableConfig("a", 10, 4, rows(A)), TableConfig("b", 7, 4, rows(B))]
    whole = _OfTables(tables)((17, 4))
    assert_close(whole, np.concatenate([A, B]))
    parts = [
        _OfTables(tables)((17, 4), partition_offset=(first, 0), partition_shape=(count, 4))
        for first, count in ((0, 6), (6, 6), (12, 5))
    ]
    assert_close(tf.concat(parts, 0), whole)


def test_it_is_part_of_a_saved_model(tmp_path: Any) -> None:
    inputs = {
        "one": tf.keras.Input([], dtype="int64", name="one"),
        "several": tf.keras.Input([2], dtype="int64", name="several"),
    }
    table = TableConfig("a", 10, 4, tf.keras.initializers.RandomUniform(seed=1), combiner="sum")
    tables = FeatureEmbeddings({name: FeatureConfig(table) for name in inputs})
    model = tf.keras.Model(inputs, tf.keras.layers.Concatenate()(list(tables(inputs).values())))
    model.save(tmp_path / "model.keras")
    ids = {name: tf.constant(IDS[name]) for name in inputs}
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(ids), model(ids))
    assert len(again.weights) == 1


def test_an_optimizer_of_a_table() -> None:
    optimizers = tf.keras.optimizers
    own = TableConfig("own", 5, 4, optimizer="adagrad")
    tables = FeatureEmbeddings(
        {"a": FeatureConfig(own), "b": FeatureConfig(TableConfig("b", 5, 4))}
    )
    if not keras_is_3():
        with pytest.raises(UsageError, match="received 'Adagrad'; accepted: None with this Keras"):
            tables.optimizer(optimizers.Adam())
        return
    tables.build()
    ids = {"a": IDS["one"] % 5, "b": IDS["one"] % 5}
    assert tables(ids)["a"].shape == (3, 4)
    with pytest.raises(Exception, match=r"Compile the model with tables.optimizer\("):
        tables(ids, training=True)
    of_all = tables.optimizer(optimizers.Adam())
    of_all.build(tables.trainable_variables)
    kinds = [type(each).__name__ for each in of_all.optimizers]
    assert sorted(kinds) == ["Adagrad", "Adam"]
    assert tables(ids, training=True)["a"].shape == (3, 4)
    # Two slots of Adam, one of Adagrad; and each has a counter and a rate.
    assert len(of_all.variables) == 3 * 2 + 2 + 1


def test_without_optimizers_of_tables_it_is_that_of_the_model() -> None:
    adam = tf.keras.optimizers.Adam()
    assert layer().optimizer(adam) is adam


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (TableConfig("a", 5, 4, combiner="max"), "TableConfig.combiner: received 'max'"),
        (TableConfig("a", 0, 4), "TableConfig.vocabulary_size: received 0"),
        (TableConfig("a", 5, 0), "TableConfig.embedding_dim: received 0"),
    ],
)
def test_a_table_that_is_none(table: TableConfig, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        FeatureEmbeddings({"a": FeatureConfig(table)})


def test_two_tables_with_one_name_are_refused() -> None:
    tables = TableConfig("a", 5, 4), TableConfig("a", 6, 4)
    with pytest.raises(UsageError, match="received 'a for two tables'"):
        FeatureEmbeddings({f"{number}": FeatureConfig(each) for number, each in enumerate(tables)})


@pytest.mark.parametrize(
    ("ids", "received"),
    [
        (np.zeros([3, 2, 2], "int64"), r"received 'int64 of shape \(3, 2, 2\)'"),
        (np.zeros([3], "float32"), r"received 'float32 of shape \(3,\)'"),
    ],
)
def test_ids_of_another_kind_are_refused(ids: np.ndarray, received: str) -> None:
    with pytest.raises(Exception, match=received):
        layer()({**IDS, "one": ids})


def test_weights_of_an_unknown_feature_are_refused() -> None:
    with pytest.raises(Exception, match="the weights of tables: received 'other'"):
        layer()(IDS, weights={"other": np.ones([3])})


def test_the_features_are_those_of_the_layer() -> None:
    # Keras wraps the error.
    with pytest.raises(Exception, match="the features of tables: received 'one'; accepted: one, "):
        layer()({"one": IDS["one"]})
