"""Trains a two-tower recommender whose table of users is larger than the memory of one ps.

    tfdist run --workers=2 --ps=2 --chief examples/recommender.py --partition_bytes=33554432 \
        --output_dir=/tmp/run

A user and an item are rows of two tables (Covington et al. 2016, "Deep Neural Networks for YouTube
Recommendations"). Each batch of B interactions gives B x B logits, and the loss is the softmax over
the items of the batch. A step reads and updates only the rows of its batch.

The interactions are synthetic, from a seed: users and items belong to hidden groups, a user
chooses items of its own group, and few users and items are popular. `val_recall` is the fraction of
held-out interactions whose item is among the ten best of its batch: 10 / B without learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow as tf
from absl import flags

flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("users", 1_000_000, "Rows of the table of users.", lower_bound=1)
flags.DEFINE_integer("items", 100_000, "Rows of the table of items.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Columns of both tables.", lower_bound=1)
flags.DEFINE_integer("batch_size", 256, "Interactions of a worker's step.", lower_bound=11)
flags.DEFINE_integer("steps", 400, "Steps per epoch, of all workers together.", lower_bound=1)
flags.DEFINE_integer("epochs", 3, "Epochs to train for.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1.0, "Learning rate of SGD.")
FLAGS = flags.FLAGS

GROUPS = 32
TEMPERATURE = 0.1
HELD_OUT = 8_192  # interactions
# The exponent of the popularity: half of the interactions are with 1 of 2**POPULARITY users.
POPULARITY = 9
# A prime above the number of rows; spreads popular rows over the table, and so over all ps.
_SPREAD = 2_654_435_761


class Uniform(tf.keras.initializers.Initializer):
    """Uniform from -0.05 to 0.05. A ps makes its parts of a table, each in the memory of the part.

    Outside a function, the random numbers, their product and the sum would be three arrays, and the
    arrays of several parts would exist at the same time.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, shape: Sequence[int], dtype: Any = None, **part: Any) -> tf.Tensor:
        first_row, *_ = part.get("partition_offset", (0,))
        return _uniform(
            tuple(part.get("partition_shape", shape)), tf.constant(first_row), self.seed
        )

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


@tf.function
def _uniform(shape: tuple[int, ...], first_row: tf.Tensor, seed: int) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, [seed, first_row], -0.05, 0.05)


class AllPairs(tf.keras.layers.Layer):
    """The logits of all pairs of users and items, both [batch, width]; [batch, batch].

    They are cosines divided by a temperature: the gradient of a short row is large, so that rows,
    which few batches contain, learn as fast as the dense layers, which are in every batch.
    """

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        users, items = (tf.math.l2_normalize(vectors, axis=-1) for vectors in inputs)
        return tf.matmul(users, items, transpose_b=True) / TEMPERATURE


class SGD(tf.keras.optimizers.SGD):
    """SGD without momentum, and without the slots for it.

    Keras 2 creates them even if the momentum is 0, and updates them completely in each step: the ps
    would need the memory of another table, and a step the time to pass over both.
    """

    def build(self, variables: list[tf.Variable]) -> None:
        super(tf.keras.optimizers.SGD, self).build(variables)
        self.momentums = [None] * len(variables)


def tower(name: str, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The input, int64 [batch], and the output, float32 [batch, width], of a tower."""
    ids = tf.keras.Input([], dtype=tf.int64, name=name)
    table = tf.keras.layers.Embedding(rows, FLAGS.width, Uniform(rows), name=f"{name}_table")
    return ids, tf.keras.layers.Dense(FLAGS.width, name=f"{name}_dense")(table(ids))


def build_model(job: tfdist.Job) -> tf.keras.Model:
    user, users = tower("user", FLAGS.users)
    item, items = tower("item", FLAGS.items)
    model = tf.keras.Model({"user": user, "item": item}, AllPairs()([users, items]))
    model.compile(
        optimizer=SGD(job.scaled_lr(FLAGS.learning_rate)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseTopKCategoricalAccuracy(10, name="recall")],
    )
    return model


def interactions(indices: tf.Tensor, split: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """A batch of interactions, the same for the same indices.

    Args:
      indices: int64 [batch].
      split: another number gives other interactions.

    Returns:
      `user` and `item`, int64 [batch]; and for each user the position of its item in the batch.
    """
    count = tf.shape(indices)[0]
    uniform = tf.random.stateless_uniform([2, count], [tf.cast(split, tf.int64), indices[0]])
    rows = tf.constant([[FLAGS.users], [FLAGS.items]], tf.int64)
    ranks = tf.cast(tf.cast(rows, tf.float32) * uniform**POPULARITY, tf.int64)
    user, item = tf.unstack(tf.minimum(ranks, rows - 1))
    # The item of that rank, or one beside it, that belongs to the user's group.
    item = tf.minimum(item // GROUPS * GROUPS + user % GROUPS, FLAGS.items - 1)
    ids = {"user": user * _SPREAD % FLAGS.users, "item": item * _SPREAD % FLAGS.items}
    return ids, tf.range(count)


def batches(count: int, split: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
    indices = tf.data.Dataset.range(count)
    shard = indices.shard(context.num_input_pipelines, context.input_pipeline_id)
    dataset = shard.batch(FLAGS.batch_size, drop_remainder=True)
    return dataset.map(partial(interactions, split=split)).prefetch(2)


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return batches(FLAGS.steps * FLAGS.batch_size, 0, context)


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(
        build_model,
        train_input,
        epochs=FLAGS.epochs,
        validation=partial(batches, HELD_OUT, 1),
        output_dir=FLAGS.output_dir,
    )
    if job.is_chief:
        print(f"recall of 10 in {FLAGS.batch_size}: {history.history['val_recall'][-1]:.4f}")


if __name__ == "__main__":
    tfdist.run(main)
