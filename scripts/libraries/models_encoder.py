"""TensorFlow Models: the encoder of BERT and its optimizer with weight decay."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags
from official.nlp import optimization
from official.nlp.modeling import models, networks

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    words = np.random.default_rng(1).integers(1, 20, [256, 8]).astype(np.int32)
    features = {
        "input_word_ids": words,
        "input_mask": np.ones_like(words),
        "input_type_ids": np.zeros_like(words),
    }
    dataset = tf.data.Dataset.from_tensor_slices((features, (words[:, 0] > 10).astype(np.int32)))
    return dataset.batch(batch_size)


def build_model() -> tf.keras.Model:
    encoder = networks.BertEncoder(
        vocab_size=20, hidden_size=16, num_layers=2, num_attention_heads=2, inner_dim=32,
        max_sequence_length=8, output_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = models.BertClassifier(encoder, num_classes=2, dropout_rate=0.0)
    optimizer = optimization.create_optimizer(0.003, num_train_steps=24, num_warmup_steps=4)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
