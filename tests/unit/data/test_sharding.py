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
    assert sharding.without_autotune(lambda: features)() is features


def test_empty_batches_make_shards_equally_long() -> None:
    elements = {"x": tf.zeros([3, 2], tf.int64), "y": tf.constant(["a", "b", "c"])}
    shard = tf.data.Dataset.from_tensor_slices(elements).batch(2)
    assert sharding.with_empty_batches(shard, 0) is shard
    longer = sharding.with_empty_batches(shard, 2)
    assert longer is not None
    assert [batch["x"].shape.as_list() for batch in longer] == [[2, 2], [1, 2], [0, 2], [0, 2]]
    assert [len(batch["y"]) for batch in longer] == [2, 1, 0, 0]


def test_only_tensors_with_a_batch_have_empty_batches() -> None:
    scalars = tf.data.Dataset.range(3)
    ragged = scalars.map(tf.range).ragged_batch(2)
    for dataset in (scalars, ragged):
        assert sharding.with_empty_batches(dataset, 1) is None
