"""`DynamicEmbedding`: which ids have rows, which lose them, and what a restored table has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.layers import DynamicEmbedding
from tfdist.layers.row_index import ADMITTED, EVICTED, FREE, REFUSED

pytestmark = pytest.mark.stacks("2.15", "newest")


def array(variable: Any) -> np.ndarray:
    return np.array(keras_compat.as_tensorflow([variable])[0].numpy())


def ids_of(table: DynamicEmbedding) -> set[int]:
    return set(array(table.ids).tolist()) - {FREE}


def met(table: DynamicEmbedding, *steps: list[int]) -> None:
    """Trains with the ids of each step."""
    for ids in steps:
        table(tf.constant(ids, tf.int64), training=True)


def row(table: DynamicEmbedding, *ids: int) -> np.ndarray:
    return np.array(table(tf.constant(ids, tf.int64)))


def is_default(table: DynamicEmbedding, *ids: int) -> list[bool]:
    last = array(table.table.embeddings)[-1]
    return [np.array_equal(each, last) for each in row(table, *ids)]


def test_a_table_for_all_ids_trains_like_an_embedding() -> None:
    """Bit for bit, after the first rows are the same, with any ids and their own order of rows."""
    layers, random = tf.keras.layers, np.random.default_rng(0)
    numbers = random.integers(0, 20, [96, 3])
    ids, labels = numbers * -1_000_000_007, random.normal(size=[96, 1]).astype("float32")
    first = np.zeros([20, 4], "float32")
    found = []
    for is_dynamic in (True, False):
        table = DynamicEmbedding(4, 20) if is_dynamic else layers.Embedding(20, 4)
        head = layers.Dense(1, kernel_initializer="ones")
        inputs = tf.keras.Input([3], dtype="int64")
        model = tf.keras.Model(inputs, head(layers.Flatten()(table(inputs))))
        model.compile(tf.keras.optimizers.Adagrad(0.3), "mse")
        if is_dynamic:
            met(table, ids.ravel().tolist())
            first = row(table, *(np.arange(20) * -1_000_000_007).tolist())
        else:
            table.set_weights([first])
        model.fit(ids if is_dynamic else numbers, labels, 16, epochs=3, verbose=0, shuffle=False)
        everything = np.arange(20) * (-1_000_000_007 if is_dynamic else 1)
        found.append((np.array(table(tf.constant(everything))), array(head.kernel)))
    for dynamic, static in zip(*found, strict=True):
        np.testing.assert_array_equal(dynamic, static)


def test_first_rows_depend_on_the_id_and_are_drawn_like_the_initializer() -> None:
    def table() -> DynamicEmbedding:
        return DynamicEmbedding(8, 4000, initializer=tf.keras.initializers.RandomUniform(seed=1))

    one, other = table(), table()
    numbers = list(range(0, 40000, 10))
    met(one, numbers)
    met(other, numbers[2000:], numbers[:2000])
    found = row(one, *numbers)
    np.testing.assert_array_equal(found, row(other, *numbers))
    assert len(np.unique(found, axis=0)) == 4000
    np.testing.assert_allclose([found.mean(), found.std()], [0, 0.05 / 3**0.5], atol=2e-3)
    assert abs(np.corrcoef(found.T) - np.eye(8)).max() < 0.06


def test_ids_of_all_kinds_and_shapes() -> None:
    table = DynamicEmbedding(4, 10)
    words = tf.constant([["a", "b"], ["b", "c"]])
    assert table(words, training=True).shape == (2, 2, 4)
    assert len(ids_of(table)) == 3
    np.testing.assert_array_equal(table(words)[0, 1], table(words)[1, 0])
    ragged = table(tf.ragged.constant([[1], [], [2, -3]], dtype=tf.int32), training=True)
    assert [len(each) for each in ragged] == [1, 0, 2]
    assert ids_of(table) >= {1, 2, -3}
    # Keras wraps it.
    with pytest.raises(RuntimeError, match="received 'float32'; accepted: int32, int64 or string"):
        table(tf.constant([1.0]))
    with pytest.raises(
        RuntimeError, match="received 'a SparseTensor'; accepted: a dense or ragged"
    ):
        table(tf.sparse.from_dense([[1, 0]]))


def test_ids_are_admitted_in_training_alone_after_they_were_met() -> None:
    table = DynamicEmbedding(4, 10, admit_after=3)
    met(table, [1, 1, 2])
    assert is_default(table, 1, 2) == [True, True]
    met(table, [2, 1, 3])
    assert ids_of(table) == {1} and is_default(table, 1, 2, 3) == [False, True, True]
    met(table, [2])
    assert ids_of(table) == {1, 2}


@pytest.mark.parametrize("policy", ["age", "frequency"])
def test_a_full_table_frees_rows_between_steps(policy: str) -> None:
    table = DynamicEmbedding(4, 5, eviction_policy=policy, free=0.4)
    met(table, [1, 2, 3, 4, 5], [2, 2, 2], [1, 4, 3], [4, 3])
    # Nothing was refused yet: all ids may fit.
    assert len(table.evict([])) == 0
    met(table, [6])
    assert is_default(table, 6) == [True]
    assert len(table.evict([])) == 2
    # 1 was met twice, but 2 for the last time before it.
    left = {1, 3, 4} if policy == "age" else {2, 3, 4}
    assert ids_of(table) == left
    met(table, [6, 7])
    assert ids_of(table) == {*left, 6, 7}
    assert array(table.totals)[[ADMITTED, EVICTED, REFUSED]].tolist() == [7, 2, 1]


@pytest.mark.parametrize("policy", ["age", "frequency"])
def test_what_is_evicted_depends_on_the_ids_and_not_on_their_rows(policy: str) -> None:
    """A restart changes which rows are free, and so the row of an id."""
    left = []
    for ids in (range(8), range(7, -1, -1)):
        table = DynamicEmbedding(4, 8, eviction_policy=policy, free=0.4)
        for each in ids:
            met(table, [each])
        met(table, list(range(9)))
        assert len(table.evict([])) == 3
        left.append(ids_of(table))
    assert left[0] == left[1]


def test_age_is_in_steps_that_may_call_the_layer_several_times() -> None:
    table = DynamicEmbedding(4, 10, evict_after=2)
    for step in range(5):  # Two features share the table.
        met(table, [0, step], [step])
    assert table.evict([], steps=5).tolist() == [1]
    assert ids_of(table) == {0, 2, 3, 4}


def test_old_ids_lose_their_rows() -> None:
    table = DynamicEmbedding(4, 10, evict_after=2)
    met(table, [1, 2], [2], [3])
    assert len(table.evict([])) == 0
    met(table, [3])
    assert len(table.evict([])) == 1
    assert ids_of(table) == {2, 3}


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl"])
def test_a_row_that_is_used_again_is_new_for_the_optimizer(name: str) -> None:
    table = DynamicEmbedding(4, 2, free=0.5)
    inputs = tf.keras.Input([1], dtype="int64")
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(table(inputs)))
    model = tf.keras.Model(inputs, outputs)
    optimizer = getattr(tf.keras.optimizers, name)(0.1)
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    slots = [each for each in optimizer.variables if tuple(each.shape) == (3, 4)]
    first = [array(each) for each in slots]
    assert slots
    for ids in ([1], [2], [1], [3]):
        model.fit(np.array([ids]), np.ones([1, 1]), verbose=0)
    place = array(table.ids).tolist().index(2)
    trained = [array(each) for each in slots]
    assert all(
        (now[place] != before[place]).any() for now, before in zip(trained, first, strict=True)
    )
    assert len(table.evict([optimizer])) == 1
    for slot, now, before in zip(slots, trained, first, strict=True):
        expected = now.copy()
        expected[place] = before[place]
        np.testing.assert_array_equal(array(slot), expected)


def test_a_restored_table_finds_its_rows(tmp_path: Path) -> None:
    """Whoever restores the weights: a checkpoint, `set_weights`, or `load_model`."""

    def of(table: DynamicEmbedding) -> Any:
        model = tf.keras.Sequential([tf.keras.Input([1], dtype="int64"), table])
        model.compile("sgd", "mse")
        return model

    numbers = [7, 8, 9]
    table = DynamicEmbedding(4, 3, name="table")
    model = of(table)
    met(table, numbers)
    rows, weights = row(table, *numbers), model.get_weights()
    model.save(tmp_path / "model.keras")
    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))

    other = DynamicEmbedding(4, 3)
    restored = of(other)
    met(other, [1, 2, 3])
    restored.set_weights(weights)
    np.testing.assert_array_equal(row(other, *numbers), rows)
    met(other, [1])
    assert is_default(other, 1) == [True]

    third = DynamicEmbedding(4, 3)
    tf.train.Checkpoint(model=of(third)).restore(saved).expect_partial()
    np.testing.assert_array_equal(row(third, *numbers), rows)
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.array(loaded(tf.constant([numbers]).numpy().T))[:, 0], rows)
    # Weights of an earlier moment, as `restore_best_weights` sets them.
    fourth = DynamicEmbedding(4, 3)
    again = of(fourth)
    met(fourth, [4])
    before = again.get_weights()
    met(fourth, [5, 6])
    again.set_weights(before)
    met(fourth, [7, 8])
    assert ids_of(fourth) == {4, 7, 8}


def test_mixed_precision_computes_in_16_bits_and_keeps_rows_in_32() -> None:
    policy = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        table = DynamicEmbedding(4, 10)
        inputs = tf.keras.Input([1], dtype="int64")
        outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(table(inputs)))
        model = tf.keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        model.fit(np.array([[3], [4]]), np.ones([2, 1]), verbose=0)
        assert tf.as_dtype(table(tf.constant([3])).dtype) == tf.bfloat16
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)
    assert ids_of(table) == {3, 4}
    assert array(table.table.embeddings).dtype == np.float32


def test_a_table_that_has_met_nothing_is_exported(tmp_path: Path) -> None:
    table = DynamicEmbedding(4, 10)
    table(tf.constant([1]))
    archive = tf.Module()
    with table.exporting():
        archive.serve = tf.function(table.call, [tf.TensorSpec([None], tf.int64)], autograph=False)
        archive.table = [table.exported, *keras_compat.as_tensorflow(table.weights)]
        tf.saved_model.save(archive, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.serve(tf.constant([1, 2], tf.int64))
    np.testing.assert_array_equal(found, row(table, 1, 2))


def test_a_layer_that_is_not_trained_admits_nothing() -> None:
    table = DynamicEmbedding(4, 10)
    table.trainable = False
    met(table, [1])
    assert ids_of(table) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"capacity": 0},
            r"DynamicEmbedding\(capacity\): received 0; accepted: a positive whole number",
        ),
        ({"free": 1.0}, r"DynamicEmbedding\(free\): received 1.0"),
        ({"evict_after": 1.5}, r"DynamicEmbedding\(evict_after\): received 1.5"),
        ({"evict_after": 0}, r"DynamicEmbedding\(evict_after\): received 0"),
        ({"eviction_policy": "LFU"}, "eviction_policy: received 'LFU'; accepted: age, frequency"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DynamicEmbedding(4, **{"capacity": 10, **arguments})


@pytest.mark.horovod
def test_ranks_in_a_loop_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import horovod.tensorflow as hvd

    table = DynamicEmbedding(2, 4, name="users")
    met(table, [1])
    monkeypatch.setattr(hvd, "is_initialized", lambda: True)
    monkeypatch.setattr(hvd, "size", lambda: 2)
    table(tf.constant([1]))
    # Keras 2 makes its own error of it.
    with pytest.raises((UsageError, RuntimeError), match="a train step of 2 replicas that do not"):
        met(table, [1])
    table.gather = lambda ids: ids
    met(table, [2])
    assert ids_of(table) == {1, 2}
