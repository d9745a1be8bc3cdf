"""`tfdist.stage` assigns the layers that are created in its block."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.layers.stage import stage, stage_of

pytestmark = pytest.mark.stacks("2.15", "newest")

Dense = tf.keras.layers.Dense


def test_layers_created_in_a_block_have_its_stage() -> None:
    with stage(0):
        first = Dense(1)
    with stage(2):
        second = Dense(1)
    assert (stage_of(first), stage_of(second)) == (0, 2)


def test_a_layer_outside_of_a_block_has_no_stage() -> None:
    before = Dense(1)
    with stage(1):
        pass
    assert stage_of(before) is None
    assert stage_of(Dense(1)) is None


def test_layers_of_own_classes_and_the_layers_that_they_create_have_the_stage() -> None:
    class Block(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Dense(1)

    with stage(1):
        block = Block()
    assert (stage_of(block), stage_of(block.inner)) == (1, 1)


def test_a_model_works_as_it_does_without_stages() -> None:
    with stage(0):
        model = tf.keras.Sequential([tf.keras.Input([2]), Dense(1, kernel_initializer="ones")])
    assert float(model(tf.ones([1, 2]))[0, 0]) == 2.0
    clone = tf.keras.models.clone_model(model)
    assert stage_of(clone.layers[0]) is None


def test_blocks_of_two_stages_do_not_nest() -> None:
    with pytest.raises(UsageError, match="in stage 0 and in stage 1"), stage(0), stage(1):
        Dense(1)


def test_blocks_of_one_stage_nest() -> None:
    with stage(1), stage(1):
        layer = Dense(1)
    assert stage_of(layer) == 1


def test_keras_is_as_before_after_an_error() -> None:
    create = tf.keras.layers.Layer.__init__
    with pytest.raises(RuntimeError), stage(0):
        raise RuntimeError
    assert tf.keras.layers.Layer.__init__ is create
    assert stage_of(Dense(1)) is None
