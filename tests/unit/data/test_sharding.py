"""What `job.dataset` does with a dataset before Keras has it."""

from __future__ import annotations

import warnings

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.data import sharding
from tfdist.estimator import inputs


def dataset(autotune: bool | None = None) -> tf.data.Dataset:
    options = tf.data.Options()
    if autotune is not None:
        options.autotune.enabled = autotune
    options.deterministic = False
    return tf.data.Dataset.range(4).map(lambda x: (x, x)).with_options(options)


@pytest.mark.parametrize(("asked", "found"), [(None, False), (True, True), (False, False)])
def test_datasets_are_autotuned_only_where_they_say_so(
    tiny: TinyTraining, asked: bool | None, found: bool
) -> None:
    job = tiny.job()
    estimators = inputs.unsharded(lambda: dataset(asked))
    for made in (
        job.dataset(lambda _: dataset(asked)),
        job.eval_dataset(lambda _: dataset(asked)),
        estimators("eval", {}, None),
    ):
        assert made.options().autotune.enabled is found
        assert made.options().deterministic is False
        assert len(list(made)) == 4


def test_nothing_is_said_of_it_in_a_graph() -> None:
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("error")
        made = inputs.unsharded(dataset)("eval", {}, None)
        assert made._options_attr.autotune.enabled is False


def test_what_is_no_dataset_is_left_alone() -> None:
    features = {"x": tf.zeros([2])}
    assert sharding.without_autotune(lambda: features)() is features
