"""TensorFlow Recommenders: two towers whose negatives are the other examples of the whole batch."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
USERS, FILMS = 40, 30


class TwoTowers(tfrs.Model):
    def __init__(self, job: tfdist.Job) -> None:
        super().__init__()
        self.gather = job.gather
        self.user = tf.keras.layers.Embedding(USERS, 8)
        self.film = tf.keras.layers.Embedding(FILMS, 8)
        self.task = tfrs.tasks.Retrieval()

    def call(self, features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return self.user(features["user"]), self.film(features["film"])

    def compute_loss(self, features: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        users, films = self(features)
        return self.task(users, self.gather(films), compute_metrics=False)


def data(batch_size: int) -> tf.data.Dataset:
    random = np.random.default_rng(1)
    users = random.integers(0, USERS, 512)
    features = {"user": users, "film": (users + random.integers(0, 3, 512)) % FILMS}
    return tf.data.Dataset.from_tensor_slices(features).batch(batch_size)


def build_model(job: tfdist.Job) -> tf.keras.Model:
    model = TwoTowers(job)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
