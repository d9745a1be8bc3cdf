"""The global seed of TensorFlow has a setter and no getter."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.upstream import global_seed

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_there_is_no_public_getter() -> None:
    """If this fails, `tfdist.upstream.global_seed` can use the new function."""
    assert not hasattr(tf.random, "get_seed")
    assert not hasattr(tf.random, "get_global_seed")


def test_a_graph_gets_its_seed_back() -> None:
    with tf.Graph().as_default() as graph:
        graph.seed = 7
        with global_seed.default():
            assert graph.seed == 7
        graph.seed = None
        with global_seed.default():
            assert graph.seed == 0
        assert graph.seed is None


@pytest.mark.skipif(not hasattr(tf.keras, "random"), reason="Keras 2 has no such generator")
def test_the_own_generator_of_keras_3_is_put_aside() -> None:
    with global_seed.default():
        expected = float(tf.keras.random.uniform([]))
    first = float(tf.keras.random.uniform([]))
    with global_seed.default():
        assert float(tf.keras.random.uniform([])) == expected
    assert float(tf.keras.random.uniform([])) not in (first, expected)
