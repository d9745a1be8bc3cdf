"""The options that `job.dataset` sets on a dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.data import sharding
from tfdist.estimator import input_functions

pytestmark = pytest.mark.stacks("2.15")


def dataset(autotune: bool | None = None) -> tf.data.Dataset:
    options = tf.data.Options()
    if autotune is not None:
        options.autotune.enabled = autotune
    options.deterministic = False
    return tf.data.Dataset.range(4).batch(1).map(lambda x: (x, x)).with_options(options)


@pytest.mark.parametrize(("option", "expected"), [(None, False), (True, True), (False, False)])
def test_datasets_are_autotuned_only_if_their_options_say_so(
    tiny: TinyTraining, option: bool | None, expected: bool
) -> None:
    job = tiny.job()
    estimators: Callable[..., Any] = input_functions.unsharded(lambda: dataset(option))
    for result in (
        job.dataset(lambda _: dataset(option)),
        job.eval_dataset(lambda _: dataset(option)),
        estimators("eval", {}, None),
    ):
        assert result.options().autotune.enabled is expected
        assert result.options().deterministic is False
        assert len(list(result)) == 4


def test_setting_the_options_in_a_graph_logs_no_warning() -> None:
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("error")
        result: Any = input_functions.unsharded(dataset)("eval", {}, None)
        assert result._options_attr.autotune.enabled is False


def test_other_inputs_are_not_changed() -> None:
    features = {"x": tf.zeros([2])}
    assert sharding.without_autotune(features) is features


def test_batches_of_a_static_size_get_an_unknown_one() -> None:
    whole = tf.data.Dataset.range(6).batch(2, drop_remainder=True)
    batches = sharding.of_unknown_size(whole)
    assert batches.element_spec.shape.as_list() == [None]
    assert int(batches.cardinality()) == 3
    assert [batch.tolist() for batch in batches.as_numpy_iterator()] == [[0, 1], [2, 3], [4, 5]]
    scalars = tf.data.Dataset.range(2)
    assert sharding.of_unknown_size(scalars) is scalars


def test_empty_batches_make_shards_equally_long() -> None:
    elements = {"x": tf.zeros([3, 2], tf.int64), "y": tf.constant(["a", "b", "c"])}
    shard = tf.data.Dataset.from_tensor_slices(elements).batch(2)
    assert sharding.with_empty_batches(shard, 0) is shard
    longer = sharding.with_empty_batches(shard, 2)
    assert longer is not None
    assert [batch["x"].shape.as_list() for batch in longer] == [[2, 2], [1, 2], [0, 2], [0, 2]]
    assert [len(batch["y"]) for batch in longer] == [2, 1, 0, 0]


def test_ragged_and_sparse_batches_have_empty_batches_too() -> None:
    numbers = tf.data.Dataset.range(3)
    ragged = numbers.map(tf.range).ragged_batch(2)
    sparse = numbers.map(lambda n: tf.sparse.from_dense(tf.one_hot(n, 3))).batch(2)
    for dataset in (ragged, sparse):
        longer = sharding.with_empty_batches(dataset, 1)
        assert longer is not None
        assert [int(tf.shape(batch)[0]) for batch in longer] == [2, 1, 0]


def test_empty_batches_of_padded_texts_have_the_length_of_the_last_batch() -> None:
    """A convolution has no output for texts of length 0."""
    texts = tf.data.Dataset.range(1, 4).map(lambda n: (tf.range(n), n)).padded_batch(2)
    longer = sharding.with_empty_batches(texts, 2)
    assert longer is not None
    assert longer.element_spec == texts.element_spec
    assert [text.shape.as_list() for text, _ in longer] == [[2, 2], [1, 3], [0, 3], [0, 3]]
    assert [len(number) for _, number in longer] == [2, 1, 0, 0]


def test_batches_whose_type_does_not_tell_their_shape_have_no_empty_ones() -> None:
    scalars = tf.data.Dataset.range(3)
    unknown = scalars.batch(2).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
    for dataset in (scalars, unknown):
        assert sharding.with_empty_batches(dataset, 1) is None


@pytest.mark.parametrize("has_known_shape", [True, False])
def test_a_repeated_example_does_not_change_the_order(has_known_shape: bool) -> None:
    def make() -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(5).shuffle(5, seed=1).batch(2)
        if not has_known_shape:
            dataset = dataset.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
        return dataset.map(lambda x: {"x": x})

    longer, plain = sharding.with_repeats(make(), 2, make), make()
    for _ in range(2):
        found = [batch["x"].tolist() for batch in longer.as_numpy_iterator()]
        assert found[:3] == [batch["x"].tolist() for batch in plain.as_numpy_iterator()]
        assert [len(batch) for batch in found[3:]] == [1, 1]
        assert found[3] == found[4]
        assert found[3][0] in range(5)
