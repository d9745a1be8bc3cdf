"""KerasRS: a deep and cross network ranks films for users."""

from __future__ import annotations

import tfdist  # isort: skip

import keras_rs
import numpy as np
import tensorflow as tf
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
USERS, FILMS = 40, 30


def data(batch_size: int) -> tf.data.Dataset:
    random = np.random.default_rng(1)
    users, films = random.integers(0, USERS, 512), random.integers(0, FILMS, 512)
    ratings = ((users + films) % 5 / 5).astype(np.float32)
    features = {"user": users, "film": films}
    return tf.data.Dataset.from_tensor_slices((features, ratings[:, None])).batch(batch_size)


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers
    inputs = {name: tf.keras.Input([], name=name, dtype="int32") for name in ("user", "film")}
    user = layers.Embedding(USERS, 8)(inputs["user"])
    film = layers.Embedding(FILMS, 8)(inputs["film"])
    first = layers.Concatenate()([user, film])
    crossed = keras_rs.layers.FeatureCross()(first, first)
    crossed = keras_rs.layers.FeatureCross()(first, crossed)
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Dense(16, "relu")(crossed)))
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
