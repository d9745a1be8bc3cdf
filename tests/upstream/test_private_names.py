"""Private names that tfdist uses because there is no public API.

A test fails when the private name is gone, or when a public API appears: then use that one in the
module of `tfdist/upstream` that the test names.
"""

from __future__ import annotations

import importlib
import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import input_lib

import tfdist  # noqa: F401
from tests.conftest import keras_is_3
from tfdist.upstream import (
    dataset_inputs,
    keras_layer_creation,
    keras_output_dtype,
    tf_coordination,
)

pytestmark = pytest.mark.stacks("2.15", "2.21")


def test_a_dataset_has_no_public_list_of_its_inputs() -> None:
    """`dataset_inputs`"""
    source = tf.data.Dataset.range(3)
    assert list(dataset_inputs.ancestors(source.batch(2).prefetch(1)))[-1] is source
    assert not hasattr(tf.data.Dataset, "inputs")


def test_a_strategy_has_no_public_way_to_trust_equal_shards() -> None:
    """`tfdist.data.sharding.TakesShards`"""
    extended = tf.distribute.MultiWorkerMirroredStrategy().extended
    assert extended.experimental_enable_get_next_as_optional is True
    assert extended._in_multi_worker_mode() is False
    source = inspect.getsource(input_lib._enable_get_next_as_optional)
    assert "experimental_enable_get_next_as_optional" in source
    assert "_in_multi_worker_mode()" in source
    options = vars(tf.distribute.InputOptions())
    assert not [name for name in options if "partial" in name or "optional" in name]


def test_the_coordination_service_has_no_public_api() -> None:
    """`tf_coordination`"""
    assert callable(tf_coordination.tf_context.context().configure_coordination_service)
    assert callable(tf_coordination.tf_context.context().set_config_key_value)
    for place in (tf.config, tf.config.experimental, tf.distribute, tf.distribute.experimental):
        assert not [name for name in dir(place) if "coordination" in name.lower()], place
    options = inspect.signature(tf.distribute.MultiWorkerMirroredStrategy.__init__).parameters
    assert not [name for name in options if "heartbeat" in name or "timeout" in name]


def test_a_callback_has_no_public_way_to_set_the_first_epoch() -> None:
    """`keras_initial_epoch`"""
    source = inspect.getsource(tf.keras.callbacks.BackupAndRestore)
    assert ("_initial_epoch" if keras_is_3() else "_training_state") in source
    assert not hasattr(tf.keras.Model, "initial_epoch")


def test_a_model_has_no_public_way_to_compute_without_its_strategy() -> None:
    """`keras_local_calls`"""
    name = "_distribute_strategy" if keras_is_3() else "_distribution_strategy"
    assert name in vars(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
    assert tf.keras.Model.distribute_strategy.fset is None
    # `predict` joins the outputs of all tasks.
    package = "keras.src.backend.tensorflow" if keras_is_3() else "keras.src.engine"
    trainer = importlib.import_module(f"{package}.{'trainer' if keras_is_3() else 'training'}")
    assert "_multi_worker_concat(" in inspect.getsource(trainer.reduce_per_replica)


def test_keras_has_no_hook_for_the_creation_of_a_layer() -> None:
    """`keras_layer_creation`"""
    created: list[tf.keras.layers.Layer] = []
    with keras_layer_creation.after_creation(created.append):
        layer = tf.keras.layers.Dense(1)
    tf.keras.layers.Dense(1)
    assert created == [layer]
    public = [name for name in dir(tf.keras.layers.Layer) if not name.startswith("_")]
    hooks = [name for name in public if "creat" in name or "on_init" in name]
    assert hooks == []


def test_the_layers_of_the_outputs_and_their_dtype_are_not_public() -> None:
    """`keras_output_dtype`"""
    hidden, last = tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)
    model = tf.keras.Sequential([tf.keras.Input([3]), hidden, last])
    assert list(keras_output_dtype.output_layers(model)) == [last]
    assert hasattr(tf.keras.layers.Layer, "_set_dtype_policy") != keras_is_3()
    assert (tf.keras.layers.Layer.dtype_policy.fset is None) != keras_is_3()
    public = [name for name in dir(model) if "output" in name and not name.startswith("_")]
    assert not [name for name in public if "layer" in name]


def test_a_dataset_has_no_public_batch_size() -> None:
    """`dataset_inputs`"""
    source = tf.data.Dataset.range(7)
    assert dataset_inputs.batch_size(source) is None
    assert dataset_inputs.batch_size(source.batch(3).map(lambda x: x + 1).prefetch(1)) == 3
    assert dataset_inputs.batch_size(source.batch(3, num_parallel_calls=2)) == 3
    assert dataset_inputs.batch_size(source.batch(3, drop_remainder=True)) == 3
    assert source.batch(3).element_spec.shape == [None]
    assert not hasattr(source.batch(3), "batch_size")


def test_a_callback_cannot_publicly_ignore_the_logs_of_a_step() -> None:
    """`keras_callback_logs`"""
    if keras_is_3():
        assert not hasattr(tf.keras.callbacks.Callback, "_supports_tf_logs")
        return
    source = inspect.getsource(tf.keras.callbacks.CallbackList)
    assert "_supports_tf_logs" in source
