"""DeepCTR: DeepFM on two sparse features and a dense one."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags
from deepctr.feature_column import DenseFeat, SparseFeat
from deepctr.models import DeepFM

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
COLUMNS = [SparseFeat("user", 40, 8), SparseFeat("item", 30, 8), DenseFeat("price", 1)]


def data(batch_size: int) -> tf.data.Dataset:
    random = np.random.default_rng(1)
    users, items = random.integers(0, 40, 512), random.integers(0, 30, 512)
    price = random.uniform(size=[512, 1]).astype(np.float32)
    labels = ((users + items) % 3 == 0).astype(np.float32)[:, None]
    features = {"user": users[:, None], "item": items[:, None], "price": price}
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch_size)


def build_model() -> tf.keras.Model:
    model = DeepFM(COLUMNS, COLUMNS, dnn_hidden_units=(16, 8))
    model.compile(tf.keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["AUC"])
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
