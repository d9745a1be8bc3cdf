"""Trains with asynchronous parameter servers, and counts the updates between read and update."""

from __future__ import annotations

from typing import Any

import tfdist

import tensorflow as tf  # isort: skip
from absl import flags  # isort: skip

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "", required=True)
# Products of matrices in a step.
SLOW, FAST = 160.0, 40.0


class Counting(tf.keras.Model):
    """Its metric `stale` is the mean number of updates by others during a step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
        self.num_updates = tf.Variable(0.0, trainable=False)
        self.stale = tf.keras.metrics.Mean("stale")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, targets, products = data
        # TensorFlow counts `optimizer.iterations` before it has the gradients.
        before = self.num_updates.read_value()
        zero = _zero_after(products[0, 0] + tf.minimum(before, 0.0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs + zero) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.num_updates.assign_add(1.0 + zero)
        self.stale.update_state(self.num_updates.read_value() - before - 1.0)
        return {"stale": self.stale.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.stale]


def _zero_after(products: tf.Tensor) -> tf.Tensor:
    """Zero, shape [], after so many products of matrices."""
    _, matrix = tf.while_loop(
        lambda made, _: made < products,
        lambda made, matrix: (made + 1.0, matrix @ matrix),
        (0.0, tf.zeros([300, 300])),
    )
    return tf.reduce_sum(matrix)


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Worker 0 is slow."""
    products = FAST if context.input_pipeline_id else SLOW
    example = (tf.ones([4]), tf.ones([1]), tf.constant([products]))
    return tf.data.Dataset.from_tensors(example).repeat().batch(2)


def build() -> Counting:
    model = Counting()
    model.build([None, 4])
    model.compile(tf.keras.optimizers.SGD(0.001))
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    job.fit(build, train_input, epochs=2, steps_per_epoch=100, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
