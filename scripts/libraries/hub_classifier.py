"""KerasHub: a small BERT classifies sentences that its WordPiece tokenizer splits."""

from __future__ import annotations

import tfdist  # isort: skip

import random

import keras_hub
import tensorflow as tf
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "book", "a", "the"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def data(batch_size: int) -> tf.data.Dataset:
    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=VOCABULARY)
    preprocess = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    rows = [(f"{article} {word} {noun}", int(word in WORDS[:3])) for article in WORDS[8:]
            for word in WORDS[:6] for noun in WORDS[6:8]]  # fmt: skip
    random.Random(1).shuffle(rows)
    texts, labels = zip(*rows, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(texts), list(labels)))
    return dataset.repeat(8).batch(batch_size).map(preprocess)


def build_model() -> tf.keras.Model:
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(VOCABULARY), num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, max_sequence_length=8, dropout=0.0,
    )  # fmt: skip
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, dropout=0.0)
    model.compile(
        tf.keras.optimizers.Adam(0.003),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 16 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
