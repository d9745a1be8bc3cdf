"""Contributions of workers are averaged, and update weights and statistics once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.transfers.contributions import Recorded
from tfdist.strategies.parameter_server.transfers.recorder import Recorder

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")

# Two batches of different rows of the table, one row twice.
BATCHES = [np.array([[0, 1], [1, 2]]), np.array([[3, 1], [3, 3]])]


def model_of() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input([2]),
            tf.keras.layers.Embedding(5, 3),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(2),
        ]
    )


def gradients_of(model: tf.keras.Model, batch: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(batch) - 1.0))
    gradients: list[Any] = tape.gradient(loss, model.trainable_variables)
    return gradients


@pytest.mark.parametrize("packs", [True, False])
def test_one_update_with_the_average_of_the_batches(packs: bool) -> None:
    expected, model = model_of(), model_of()
    optimizer = tf.keras.optimizers.Adam(0.1)
    with tf.GradientTape() as tape:
        losses = [tf.reduce_mean(tf.square(expected(batch) - 1.0)) for batch in BATCHES]
        loss = tf.add_n(losses) / 2
    gradients = tape.gradient(loss, expected.trainable_variables)
    # As in the contributions, so that Adam treats the same rows.
    assert isinstance(gradients[0], tf.IndexedSlices)
    optimizer.apply_gradients(zip(gradients, expected.trainable_variables, strict=True))

    recorder = Recorder()
    optimizer = recorder.wrap(tf.keras.optimizers.Adam(0.1))
    found: list[Recorded] = []

    @tf.function(autograph=False)
    def contribution(batch: tf.Tensor) -> list[tf.Tensor]:
        with recorder.recording() as recorded:
            pairs = zip(gradients_of(model, batch), model.trainable_variables, strict=True)
            optimizer.apply_gradients(pairs)
        found.append(recorded)
        return recorded.on_ps(recorded.in_packs(packs=packs))

    traced = contribution.get_concrete_function(tf.TensorSpec([None, 2], tf.int64))
    before = model.get_weights()
    contributions = [traced(tf.constant(batch)) for batch in BATCHES]
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    # The kernel and the bias; the values and the indices of the table's gradient.
    assert len(contributions[0]) == (3 if packs else 4)

    specs = [tf.TensorSpec(output.shape, output.dtype) for output in traced.structured_outputs]
    apply = tf.function(found[0].apply, autograph=False).get_concrete_function([specs, specs])
    apply(*contributions[0], *contributions[1])
    assert int(optimizer.iterations) == 1
    for weight, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=0, atol=1e-6)


def test_changes_of_statistics_are_averaged_and_counters_count_updates() -> None:
    mean, counter = tf.Variable([1.0, 2.0]), tf.Variable(5)
    found: list[Recorded] = []

    @tf.function(autograph=False)
    def contribution(value: tf.Tensor) -> list[tf.Tensor]:
        with Recorder().recording([mean, counter]) as recorded:
            mean.assign(0.9 * mean + 0.1 * value)
            mean.assign_sub([0.0, 1.0])
            mean.assign_add([0.0, 1.0])
            counter.assign_add(1)
        found.append(recorded)
        return recorded.in_packs(packs=True)

    contributions = [contribution(tf.constant(value)) for value in (10.0, 20.0)]
    # The counter needs no message: its change is a constant.
    assert [len(each) for each in contributions] == [1, 1]
    np.testing.assert_array_equal(mean, [1.0, 2.0])
    tf.function(found[0].apply, autograph=False)(contributions)
    np.testing.assert_allclose(mean, [2.4, 3.3], rtol=1e-6)
    assert int(counter) == 6
    mean.assign([0.0, 0.0])
    np.testing.assert_array_equal(mean, [0.0, 0.0])


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_variable_is_summed_if_it_says_so_and_a_counter_counts_updates(dtype: str) -> None:
    total = tf.Variable(tf.constant(10, dtype), aggregation=tf.VariableAggregation.SUM)
    steps = tf.Variable(tf.constant(5, "int64"))
    found: list[Recorded] = []

    @tf.function(autograph=False)
    def contribution(value: tf.Tensor, has_data: tf.Tensor) -> list[tf.Tensor]:
        with Recorder().recording([total, steps]) as recorded:
            total.assign_add(tf.cast(value, dtype))
            total.assign(total + tf.cast(value, dtype))
            steps.assign_add(tf.cast(has_data, tf.int64))
        found.append(recorded)
        return recorded.in_packs(packs=True)

    # The last worker has no data any more.
    contributions = [contribution(tf.constant(n), tf.constant(n > 0)) for n in (3, 4, 0)]
    assert int(total) == 10
    tf.function(found[0].apply, autograph=False)(contributions)
    assert (int(total), int(steps)) == (10 + 2 * (3 + 4), 6)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_an_update_does_not_pass_the_gradients_through_the_chief(
    is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = tf.distribute.experimental.CentralStorageStrategy(["/CPU:0"], "/CPU:0")
    with strategy.scope():
        model, optimizer = model_of(), tf.keras.optimizers.SGD(0.1, momentum=0.9)
    if is_wrapped:
        optimizer = Recorder().wrap(optimizer)
    summed = []
    reduce = strategy.extended.batch_reduce_to

    def record(*args: Any, **options: Any) -> Any:
        summed.append(True)
        return reduce(*args, **options)

    monkeypatch.setattr(strategy.extended, "batch_reduce_to", record)

    def update() -> None:
        weights = model.trainable_variables
        gradients = [tf.ones(weight.shape) for weight in weights]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    before = model.get_weights()
    tf.function(lambda: strategy.run(update), autograph=False)()

    np.testing.assert_allclose(model.get_weights()[0], before[0] - 0.1, rtol=0, atol=1e-6)
    # TensorFlow sums in the task that runs the update, which is the chief.
    assert bool(summed) is not is_wrapped


def test_a_wrapped_optimizer_still_applies_gradients_outside_a_step() -> None:
    weight = tf.keras.layers.Dense(1)
    weight.build([None, 1])
    optimizer = Recorder().wrap(tf.keras.optimizers.SGD(1.0))
    before = float(tf.squeeze(keras_compat.as_tensorflow([weight.kernel])[0]))
    optimizer.apply_gradients([(tf.constant([[2.0]]), weight.kernel)])
    after = float(tf.squeeze(keras_compat.as_tensorflow([weight.kernel])[0]))
    assert after == pytest.approx(before - 2.0)


def test_an_optimizer_in_a_branch_is_refused() -> None:
    layer = tf.keras.layers.Dense(1)
    layer.build([None, 1])
    recorder = Recorder()
    optimizer = recorder.wrap(tf.keras.optimizers.SGD(1.0))

    @tf.function(autograph=False)
    def step(flag: tf.Tensor) -> None:
        def update() -> tf.Tensor:
            optimizer.apply_gradients([(tf.constant([[2.0]]), layer.kernel)])
            return tf.constant(0)

        with recorder.recording():
            tf.cond(flag, update, lambda: tf.constant(0))

    with pytest.raises(UsageError, match=r"train_step: received 'a call of the optimizer inside"):
        step(tf.constant(True))
