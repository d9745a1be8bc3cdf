"""TensorFlow Text: its tokenizer and n-grams in the input pipeline, an average of embeddings."""

from __future__ import annotations

import tfdist  # isort: skip

import tensorflow as tf
import tensorflow_text as text
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
SENTENCES = ["not good", "good and new", "bad", "not bad at all", "very good", "very bad"]
LABELS = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def ids(sentences: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    tokens = text.WhitespaceTokenizer().tokenize(text.normalize_utf8(sentences))
    pairs = text.ngrams(tokens, 2, reduction_type=text.Reduction.STRING_JOIN)
    hashed = tf.strings.to_hash_bucket_fast(tf.concat([tokens, pairs], 1), 63) + 1
    return hashed.to_tensor(shape=[None, 8]), labels[:, None]


def data(batch_size: int) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices((SENTENCES, LABELS))
    return dataset.repeat(40).batch(batch_size).map(ids)


def build_model() -> tf.keras.Model:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input([8]),
            layers.Embedding(64, 8, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 16 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
