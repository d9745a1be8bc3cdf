"""Small trainings whose last step has any number of examples, by the name of a loss.

    tfdist run --strategy=horovod --workers=2 tests/support/last_steps.py --result=/tmp/found.npz

Trains on 1 to 2 global batches and one example, and writes the weights and the losses of each
training. They are those of one process, if each update is the gradient of the loss of the whole
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfdist.compat.keras import is_keras_3

IS_KERAS_3 = is_keras_3(tf.keras.Model)
MOST = 2 * 6 + 1
layers, losses = tf.keras.layers, tf.keras.losses

_random = np.random.default_rng(0)
POINTS = _random.normal(size=[MOST, 4]).astype("float32")
SUMS = POINTS.sum(1, keepdims=True)
WEIGHTS = _random.uniform(0.0, 2.0, [MOST]).astype("float32")
LENGTHS = _random.integers(1, 5, MOST)
TOKENS = np.where(np.arange(4) < LENGTHS[:, None], _random.integers(1, 9, [MOST, 4]), 0)
ROWS = _random.integers(0, 9, [MOST, 2])


class Ratio(tf.keras.metrics.Metric):
    """Adds the mean of each batch, which is not finite without an example."""

    def __init__(self) -> None:
        super().__init__(name="ratio")
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))

    def result(self) -> Any:
        return self.total + 0.0


class Penalty(tf.keras.layers.Layer):
    """Adds the mean of its inputs' squares to the loss, and keeps their mask."""

    supports_masking = True

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


class OwnStep(tf.keras.Model):
    """A train step whose loss is the mean over the batch of a replica."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            loss /= tf.distribute.get_strategy().num_replicas_in_sync
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"own": loss}


class GuideStep(tf.keras.Model):
    """The train step of Keras's guide, which updates the mean of the loss and reads it itself."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class TwoTowers(tf.keras.Model):
    """Scores each query with the candidates of the whole batch, those of its own replica first."""

    gather: Any = staticmethod(lambda rows: rows)

    def __init__(self) -> None:
        super().__init__()
        self.query, self.candidate = layers.Dense(3), layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        candidates = self.candidate(inputs**2)
        return tf.matmul(self.query(inputs), self.gather(candidates), transpose_b=True)


def of_negatives() -> Any:
    """A model whose loss is a softmax over the candidates of the whole batch."""

    def loss(_: Any, scores: Any) -> Any:
        own = tf.range(tf.shape(scores)[0])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores)

    model = TwoTowers()
    model(POINTS)
    model.compile(sgd(), loss)
    return model


def dense(loss: Any, *, between: Any = None, kind: Any = None, **options: Any) -> Any:
    """A model of two layers."""
    inputs = tf.keras.Input([4])
    hidden = layers.Dense(3, "tanh", kernel_regularizer=options.pop("regularizer", None))(inputs)
    hidden = hidden if between is None else between(hidden)
    model = (kind or tf.keras.Model)(inputs, layers.Dense(1)(hidden))
    model.compile(options.pop("optimizer", None) or sgd(), loss, **options)
    return model


def sgd(rate: float = 0.1) -> Any:
    """The optimizer of most cases."""
    return tf.keras.optimizers.SGD(rate)


def masked(between: Any = None, **options: Any) -> Any:
    """A model with a mask, whose loss is the mean over what it leaves."""
    inputs = tf.keras.Input([4], dtype="int32")
    hidden = layers.Embedding(9, 3, mask_zero=True)(inputs)
    hidden = hidden if between is None else between(hidden)
    model = tf.keras.Model(inputs, layers.Dense(9)(hidden))
    model.compile(sgd(), losses.SparseCategoricalCrossentropy(from_logits=True, **options))
    return model


def rows() -> Any:
    """A model with a table."""
    inputs = tf.keras.Input([2], dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(9, 3)(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(sgd(), "mse")
    return model


def two_outputs() -> Any:
    """A model with two outputs."""
    inputs = tf.keras.Input([4])
    hidden = layers.Dense(3, "tanh")(inputs)
    outputs = [layers.Dense(1, name="one")(hidden), layers.Dense(2, name="two")(hidden)]
    model = tf.keras.Model(inputs, outputs)
    model.compile(sgd(), ["mse", "mae"], loss_weights=[0.5, 1.0])
    return model


def several() -> Any:
    """A model with a mean beside a mean by a mask and a sum."""
    inputs = tf.keras.Input([4], dtype="int32")
    hidden = layers.Embedding(9, 3, mask_zero=True)(inputs)
    scores = layers.Dense(9, name="scores")(hidden)
    flat = layers.Flatten()(layers.Embedding(9, 3)(inputs))
    total, mean = layers.Dense(1, name="total")(flat), layers.Dense(1, name="mean")(flat)
    model = tf.keras.Model(inputs, [scores, total, mean])
    own = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(sgd(0.05), [own, losses.MeanSquaredError(reduction="sum"), "mse"])
    return model


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
      build: returns a compiled model.
      arrays: the features, the labels, and the sample weights.
    """

    build: Callable[[], Any]
    arrays: tuple[Any, ...] = (POINTS, SUMS)


CASES: dict[str, Case] = {
    "mean": Case(lambda: dense("mse", metrics=["mae"])),
    "adam": Case(lambda: dense("mse", optimizer=tf.keras.optimizers.Adam(0.1, clipnorm=0.5))),
    "sum": Case(lambda: dense(losses.MeanSquaredError(reduction="sum"), optimizer=sgd(0.01))),
    "weighted": Case(lambda: dense("mse"), (POINTS, SUMS, WEIGHTS)),
    "regularized": Case(lambda: dense("mse", regularizer="l2")),
    "regularized_sum": Case(
        lambda: dense(
            losses.MeanSquaredError(reduction="sum"), regularizer="l2", optimizer=sgd(0.01)
        )
    ),
    "add_loss": Case(lambda: dense("mse", between=Penalty())),
    "activity": Case(lambda: dense("mse", between=layers.ActivityRegularization(l2=0.1))),
    "scalar": Case(lambda: dense(lambda y, p: tf.reduce_mean((y - p) ** 2))),
    "metric": Case(lambda: dense("mse", metrics=[Ratio()])),
    "own_step": Case(lambda: dense(None, kind=OwnStep)),
    "guide_step": Case(lambda: dense("mse", kind=GuideStep, metrics=["mae"])),
    "negatives": Case(of_negatives, (POINTS, SUMS, WEIGHTS)),
    "mask": Case(masked, (TOKENS, TOKENS)),
    "table": Case(rows, (ROWS, SUMS)),
    "two_outputs": Case(two_outputs, (POINTS, (SUMS, POINTS[:, :2]))),
    "several": Case(several, (TOKENS, (TOKENS, SUMS, SUMS))),
    "mask_and_add_loss": Case(lambda: masked(between=Penalty()), (TOKENS, TOKENS)),
    "normalized": Case(lambda: dense("mse", between=layers.LayerNormalization())),
}
if IS_KERAS_3:
    CASES["mean_with_sample_weight"] = Case(
        lambda: dense(losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        (POINTS, SUMS, WEIGHTS),
    )
    CASES["mask_and_weights"] = Case(
        lambda: masked(reduction="mean_with_sample_weight"),
        (TOKENS, TOKENS, np.repeat(WEIGHTS[:, None], 4, 1)),
    )
else:
    CASES["legacy"] = Case(lambda: dense("mse", optimizer=tf.keras.optimizers.legacy.SGD(0.1)))


#: The cases that also validate.
VALIDATED = ("mean", "mask")


def counts_of(name: str, batch: int) -> list[int]:
    """The numbers of examples of a case with a global batch of `batch` examples."""
    every = list(range(1, 2 * batch + 2))
    return every if name in flags.FLAGS.exhaustive else [batch + 1]


def results(job: Any, names: list[str], batch: int) -> Iterator[tuple[str, np.ndarray]]:
    """Trains each case on several numbers of examples."""
    batch_size = batch // job.num_replicas
    for name in names:
        case = CASES[name]
        tf.keras.utils.set_random_seed(1)
        with job.scope():
            model = case.build()
        first = model.get_weights()
        prepare = Prepare(job)
        for count in counts_of(name, batch):
            model.set_weights(first)
            reset(model.optimizer)
            arrays = tf.nest.map_structure(itemgetter(slice(count)), case.arrays)
            data = partial(dataset, arrays, batch_size)
            validates = name in VALIDATED and count == batch + 1
            history = model.fit(
                job.dataset(data),
                validation_data=job.eval_dataset(data) if validates else None,
                callbacks=[*job._strategy.callbacks(), prepare],
                verbose=0,
            )
            for index, weight in enumerate(model.get_weights()):
                yield f"{name} {count} weight {index}", weight
            for metric, values in history.history.items():
                yield f"{name} {count} {metric}", np.array(values)


def dataset(arrays: Any, batch_size: int) -> tf.data.Dataset:
    """All examples, of which each replica uses its batches."""
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def reset(optimizer: Any) -> None:
    """Sets an optimizer to its state before the first step."""
    from tfdist.compat import keras as keras_compat

    for variable in keras_compat.as_tensorflow(keras_compat.optimizer_variables(optimizer)):
        if "learning_rate" not in variable.name:
            variable.assign(tf.zeros_like(variable))


class Prepare(tf.keras.callbacks.Callback):
    """Prepares a model before its first training, and saves nothing.

    The later ones use the functions of the first, whose tracing takes most of the time.
    """

    def __init__(self, job: Any) -> None:
        super().__init__()
        self._job = job
        self._is_prepared = False

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._is_prepared:
            self._job._state.prepare(self.model)
        self._is_prepared = True


def main(_: list[str]) -> None:
    """Trains the cases."""
    job = tfdist.init()
    TwoTowers.gather = job.gather
    if job.serves:
        return job.serve()
    found: dict[str, Any] = dict(results(job, flags.FLAGS.cases or list(CASES), flags.FLAGS.batch))
    if job.is_chief:
        np.savez(flags.FLAGS.result, **found)
    return None


if __name__ == "__main__":
    tfdist.define_flags()
    flags.DEFINE_list("cases", None, "The names of the cases; default: all.")
    flags.DEFINE_list("exhaustive", [], "The cases that train on each number of examples.")
    flags.DEFINE_integer("batch", 6, "The examples of a global batch.")
    flags.DEFINE_string("result", None, "The file of the results.", required=True)
    app.run(main, flags_parser=tfdist.parse_flags)
