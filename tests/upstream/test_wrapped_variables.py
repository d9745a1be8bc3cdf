"""The variable inside the wrappers that Keras 2 and parameter servers put around it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.compat.keras import as_tensorflow
from tfdist.upstream.wrapped_variables import innermost

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def wrapped() -> Any:
    """A variable as Keras 2 has it under parameter servers."""
    from tensorflow.python.distribute import ps_values

    return ps_values.CachingVariable(tf.Variable(1.0))


def test_the_conversion_of_a_wrapper_passes_its_methods_by() -> None:
    """If this fails, a method of the wrapper is enough to change what a step reads."""
    variable = wrapped()
    vars(variable)["value"] = lambda: tf.constant(5.0)
    assert float(tf.convert_to_tensor(variable)) == 1.0


def test_the_innermost_variable_has_no_wrapper() -> None:
    plain = tf.Variable(1.0)
    assert innermost(plain) is plain
    variable = wrapped()
    vars(innermost(variable))["value"] = lambda: tf.constant(5.0)
    assert float(variable + 0.0) == float(tf.identity(variable)) == 5.0


def test_keras_2_casts_with_a_wrapper() -> None:
    layer = tf.keras.layers.Dense(1, dtype="mixed_bfloat16")
    layer.build([None, 1])
    (kernel,) = as_tensorflow([layer.kernel])
    assert (innermost(kernel) is kernel) == keras_is_3()
