"""Several batches per update of the weights equal one batch of their size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import keras_is_3
from tests.support import habits
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.job import Job

pytestmark = pytest.mark.stacks("2.15", "newest")

layers, optimizers = tf.keras.layers, tf.keras.optimizers
# Groups of 4 batches of 4, the last with 3 batches and 2 examples in the last one.
EXAMPLES, BATCH, STEPS = 42, 4, 4
POINTS = habits.POINTS[:EXAMPLES]
SUMS = habits.SUMS[:EXAMPLES]
DAYS = habits.DAYS[:EXAMPLES]


def dense() -> Any:
    return habits.dense(optimizers.Adam(0.05), metrics=["mae"])


def scaled() -> Any:
    return habits.dense(habits.loss_scaled(optimizers.SGD(0.1, momentum=0.9)))


def of_days() -> Any:
    """Sparse gradients, of rows that several batches use."""
    inputs = tf.keras.Input([1], dtype="int64")
    rows = layers.Flatten()(layers.Embedding(5, 4)(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1, kernel_regularizer="l2")(rows))
    model.compile(optimizers.Adam(0.05), "mse")
    return model


class OwnStep(tf.keras.Model):
    """A train step of its own, with a weight that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last, self.unused = layers.Dense(3), layers.Dense(1), layers.Dense(1)
        self.seen = tf.Variable([0, 0], trainable=False)  # Batches, and examples.

    def call(self, inputs: Any) -> Any:
        self.unused(inputs)
        return self.last(self.hidden(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.seen.assign_add([1, tf.shape(x)[0]])
        self.optimizer.apply_gradients(
            (gradient, variable)
            for gradient, variable in zip(gradients, self.trainable_variables, strict=True)
            if gradient is not None
        )
        return {"loss": loss}


def own_step() -> Any:
    model = OwnStep()
    model.compile(optimizers.SGD(0.05))
    return model


def job_of(steps: int, **flags: Any) -> Job:
    return tfdist.entry.create(JobFlags.of(accumulate_steps=steps, **flags), {})


def train(output: Path, build: Callable[[], Any], inputs: Any, batch: int, steps: int) -> Any:
    """Trains two epochs; returns the history."""
    data = tf.data.Dataset.from_tensor_slices((inputs, SUMS)).batch(batch)

    def seeded() -> Any:
        tf.keras.utils.set_random_seed(1)
        return build()

    return job_of(steps).fit(seeded, lambda: data, epochs=2, output_dir=str(output), verbose=0)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (dense, POINTS),
        (scaled, POINTS),
        (of_days, DAYS[:, None]),
        (own_step, POINTS),
    ],
)
def test_accumulated_batches_equal_a_larger_one(tmp_path: Path, build: Any, inputs: Any) -> None:
    found = train(tmp_path / "found", build, inputs, BATCH, STEPS)
    expected = train(tmp_path / "expected", build, inputs, BATCH * STEPS, 1)
    weights = (history.model.trainable_weights for history in (found, expected))
    for own, other in zip(*weights, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=0, atol=1e-6)
    assert found.model.optimizer.iterations.numpy() == 2 * 3
    if build is own_step:
        assert found.model.seen.numpy().tolist() == [2 * 11, 2 * EXAMPLES]
    # The own step returns the loss of the last batch.
    left_out = {"examples_per_second", *(["loss"] if build is own_step else [])}
    for name in {*found.history} - left_out:
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5)


def test_the_numbers_of_a_job() -> None:
    job = job_of(4)
    assert job.num_replicas == 1
    assert job.global_batch_size(16) == 64
    assert job.scaled_lr(0.1) == pytest.approx(0.4)
    assert job.steps_per_epoch(130, 16) == 3


def test_sums_and_sparse_batches_are_refused(tmp_path: Path) -> None:
    def summed() -> Any:
        return habits.dense(loss=tf.keras.losses.MeanSquaredError(reduction="sum"))

    def sparse() -> tf.data.Dataset:
        return habits.sparse(tf.data.Dataset.from_tensor_slices((POINTS, SUMS)), BATCH)

    for build, data, received in (
        (summed, (POINTS, SUMS), "the loss MeanSquaredError with reduction='sum'"),
        (habits.of_sparse, sparse, "4, with elements"),
    ):
        with pytest.raises(UsageError, match="--accumulate_steps: received") as error:
            job_of(STEPS).fit(build, data, epochs=1, output_dir=str(tmp_path), verbose=0)
        assert str(error.value.received).startswith(received)


@pytest.mark.skipif(keras_is_3(), reason="Keras 3 has no legacy optimizers")
def test_a_legacy_optimizer_is_refused(tmp_path: Path) -> None:
    """Over two replicas TensorFlow would fail in the loop, or wait forever."""

    def legacy() -> Any:
        return habits.dense(optimizers.legacy.SGD(0.1))

    with pytest.raises(UsageError, match="--accumulate_steps: received 'the legacy optimizer SGD'"):
        train(tmp_path, legacy, POINTS, BATCH, STEPS)


def test_a_step_that_updates_twice_is_refused(tmp_path: Path) -> None:
    class Twice(OwnStep):
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return super().train_step(data)

    def twice() -> Any:
        model = Twice()
        model.compile(optimizers.SGD(0.05))
        return model

    with pytest.raises(UsageError, match="a train step that updates the weights 2 times"):
        train(tmp_path, twice, POINTS, BATCH, STEPS)


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        ("multi_worker_mirrored", {"sync_period": 2}),
        ("horovod", {"sync_period": 2}),
        ("central_storage", {}),
        ("in_graph", {}),
    ],
)
def test_strategies_that_cannot_accumulate_refuse_the_flag(
    strategy: str, flags: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="--accumulate_steps: received"):
        job_of(2, strategy=strategy, **flags)
