"""Trains on a stream of clicks whose users and items come and go, with tables of a fixed size.

    tfdist run --workers=2 --ps=2 --chief examples/click_stream.py --output_dir=/tmp/run

A click has the ids of a user and of an item: any int64, without a vocabulary. The rows are those of
`DynamicEmbedding`, which gives new ids a row, and takes it away from those that have not been met
for the longest time when a checkpoint is saved: with `--save_steps`, more often than once per
epoch. The model is a factorization machine (Rendle 2010).

The clicks are synthetic, from a seed. The popularity of the users and the items of a cohort is that
of Zipf's law, few are met often. All of them fade: after `--half_life` clicks, half of those in the
stream are newer. Whether a user clicks depends on hidden vectors of the user and the item, which
the model can only learn by meeting them: its input is the id alone.

`auc` is progressive: each click is predicted once, before it is trained. It is 0.5 without
learning. A job that is started again continues the stream at its newest checkpoint.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow as tf
from absl import flags

from tfdist.layers import DynamicEmbedding

flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("capacity", 40_000, "Rows of each of the two tables.", lower_bound=1)
flags.DEFINE_integer("admit_after", 1, "How often an id is met before it gets a row.")
flags.DEFINE_string("eviction_policy", "age", "Which ids lose their rows: age or frequency.")
flags.DEFINE_float("free", 0.3, "The share of the rows that a save keeps free.")
flags.DEFINE_integer("width", 16, "Columns of both tables.", lower_bound=1)
flags.DEFINE_integer("batch_size", 512, "Clicks of a worker's step.", lower_bound=1)
flags.DEFINE_integer("steps", 500, "Steps per epoch, of all workers together.", lower_bound=1)
flags.DEFINE_integer("epochs", 6, "Epochs to train for.", lower_bound=1)
flags.DEFINE_integer("save_steps", 100, "Steps between two checkpoints.", lower_bound=1)
flags.DEFINE_integer("half_life", 100_000, "Clicks until half of the ids are new.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.5, "Learning rate of Adagrad.")
FLAGS = flags.FLAGS

ZIPF = 1.1  # the exponent of the popularity
RANKS = 20_000  # of a cohort
TASTES = 4  # the length of the hidden vectors
IDS = 2**63 - 1


def clicks(batch: tf.Tensor, size: int, half_life: int, seed: int = 0) -> dict[str, tf.Tensor]:
    """A batch of the stream, the same for the same number.

    Args:
      batch: the number of the batch, int64.
      size: its clicks.
      half_life: the clicks until half of those in the stream are with newer ids.
      seed: another one gives another stream.

    Returns:
      `user` and `item`, int64 [size]; and `label`, float32 [size], 1 for a click.
    """
    uniform = tf.random.stateless_uniform([5, size], [seed, batch], dtype=tf.float64)
    now = tf.cast(batch * size, tf.float64) / half_life
    user = ids("user", now, uniform[0], uniform[1])
    item = ids("item", now, uniform[2], uniform[3])
    # The hidden vectors are bits of the ids, which are hashes.
    affinity = tf.reduce_sum(signs(user, 8) * signs(item, 8), -1)
    quality = tf.reduce_sum(signs(item, 24), -1) + 0.5 * tf.reduce_sum(signs(user, 24), -1)
    logits = (1.5 * affinity + 1.5 * quality) / math.sqrt(TASTES) - 1.0
    label = uniform[4] < tf.cast(tf.sigmoid(logits), tf.float64)
    return {"user": user, "item": item, "label": tf.cast(label, tf.float32)}


def ids(kind: str, now: tf.Tensor, popularity: tf.Tensor, age: tf.Tensor) -> tf.Tensor:
    """The ids of users or items at a moment.

    Args:
      kind: "user" or "item".
      now: the time in half-lives, float64.
      popularity: from 0, most popular, to 1, float64 [size].
      age: from 0, oldest, to 1, float64 [size].
    """
    # The inverse of the distribution of a Zipf law whose ranks are not whole.
    most = RANKS ** (1 - ZIPF)
    rank = tf.floor((1 + popularity * (most - 1)) ** (1 / (1 - ZIPF)))
    # A cohort is born in each half-life, its ids one after the other.
    born = now + tf.math.log(age) / math.log(2)
    cohort = tf.floor(born + tf.math.floormod(rank * 0.6180339887, 1.0))
    places = tf.cast(cohort * (2 * RANKS) + rank, tf.int64)
    return tf.strings.to_hash_bucket_fast(kind + tf.strings.as_string(places), IDS)


def signs(numbers: tf.Tensor, first: int) -> tf.Tensor:
    """Bits of numbers as -1 and 1, float32 [size, TASTES]."""
    shifts = tf.range(first, first + TASTES, dtype=tf.int64)
    bits = tf.bitwise.right_shift(numbers[:, tf.newaxis], shifts) % 2
    return 2 * tf.cast(bits, tf.float32) - 1


def factorization_machine(
    users: tf.keras.layers.Layer, items: tf.keras.layers.Layer
) -> tf.keras.Model:
    """The model of clicks; its output is a logit.

    Args:
      users, items: layers that give each id a row.
    """
    inputs = {name: tf.keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    rows = [users(inputs["user"]), items(inputs["item"])]
    linear = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()(rows))
    outputs = tf.keras.layers.Add()([linear, tf.keras.layers.Dot(-1)(rows)])
    return tf.keras.Model(inputs, outputs)


def build_model(job: tfdist.Job) -> tf.keras.Model:
    tables = [
        DynamicEmbedding(
            FLAGS.width,
            FLAGS.capacity,
            admit_after=FLAGS.admit_after,
            eviction_policy=FLAGS.eviction_policy,
            free=FLAGS.free,
            name=name,
        )
        for name in ("users", "items")
    ]
    model = factorization_machine(*tables)
    model.compile(
        optimizer=tf.keras.optimizers.Adagrad(job.scaled_lr(FLAGS.learning_rate)),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.AUC(from_logits=True, name="auc")],
    )
    return model


def updates_saved() -> int:
    """The updates before the newest checkpoint, from its name."""
    saved = tf.train.latest_checkpoint(str(Path(FLAGS.output_dir) / "checkpoints"))
    return int(saved.rpartition("-")[2]) if saved else 0


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    first = updates_saved() * context.num_replicas_in_sync
    numbers = tf.data.Dataset.range(first, tf.int64.max)
    numbers = numbers.shard(context.num_input_pipelines, context.input_pipeline_id)
    batches = numbers.map(partial(clicks, size=FLAGS.batch_size, half_life=FLAGS.half_life))
    return batches.map(lambda batch: (batch, batch.pop("label"))).repeat().prefetch(2)


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(
        build_model,
        train_input,
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps,
        save_steps=FLAGS.save_steps,
        output_dir=FLAGS.output_dir,
    )
    if job.is_chief:
        for epoch, auc in enumerate(history.history["auc"], 1):
            print(f"AUC of epoch {epoch}: {auc:.4f}")


if __name__ == "__main__":
    tfdist.run(main)
