"""A layer that assigns its own state in each replica is named once."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tests.support.new_process import run
from tfdist.compat.keras import as_tensorflow
from tfdist.strategies.averaged_statistics import differ, warn_of_own_states

pytestmark = [pytest.mark.stacks("2.15", "2.21", "tf_keras"), pytest.mark.timeout(120)]


class Codebook(tf.keras.layers.Layer):
    """A layer with a moving average that it uses."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(name="mean", shape=[shape[-1]], trainable=False)
        self.built = True

    def call(self, inputs: Any) -> Any:
        self.mean.assign(0.5 * (self.mean + tf.reduce_mean(inputs, 0)))
        return inputs - self.mean


def test_values_differ_beyond_the_rounding_of_their_mean() -> None:
    values = [tf.constant([1.0, 2.0]), tf.constant([0.0]), tf.constant([1.0], tf.float16)]
    means = [tf.constant([1.0, 2.5]), tf.constant([0.0]), tf.constant([1.001], tf.float16)]
    assert differ(values, means).numpy().tolist() == [True, False, False]


def test_the_layer_is_named_once_and_batch_normalization_never(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inner = tf.keras.Sequential([tf.keras.layers.Input([2]), Codebook(name="codes")])
    model = tf.keras.Sequential([inner, tf.keras.layers.BatchNormalization()])
    model.build([None, 2])
    variables = as_tensorflow(model.non_trainable_variables)
    assert len(variables) == 3

    for differing in ([False, True, True], [True, False, False], [True, True, True]):
        warn_of_own_states(model, variables, differing)

    assert capsys.readouterr().err.count("state of layer codes,") == 1


@pytest.mark.skipif(not keras_is_3(), reason="Keras 2 refuses such an assignment")
def test_the_replicas_of_a_training_are_compared_when_an_epoch_ends() -> None:
    lines = run(
        """
        import contextlib
        import io

        import tensorflow as tf
        from tests.unit.strategies.test_averaged_statistics import Codebook
        from tfdist.strategies.averaged_statistics import AveragedStatistics
        from tfdist.strategies.replicated import _mean_over_replicas

        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [logical] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        statistics = AveragedStatistics(strategy, _mean_over_replicas, is_chief=True)
        """,
        """
        for layer in (Codebook, tf.keras.layers.BatchNormalization):
            with strategy.scope():
                model = tf.keras.Sequential([tf.keras.layers.Input([1]), layer(name="codes")])
                model.compile("sgd", "mse")
            data = tf.data.Dataset.from_tensor_slices(([[1.0], [9.0]],) * 2).batch(2)
            with contextlib.redirect_stderr(io.StringIO()) as log:
                model.fit(data, epochs=2, verbose=0, callbacks=[statistics])
            print(log.getvalue().count("the state of layer codes,"))
        """,
    )
    assert lines == ["1", "0"]
