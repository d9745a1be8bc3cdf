"""Trains a model under any strategy and writes its weights, for comparison with one process."""

from __future__ import annotations

import tfdist  # isort: skip

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from tfdist.layers.stage import stage

_MODEL = flags.DEFINE_enum(
    "model", "sequential", ["sequential", "functional", "subclassed", "text"], "The model."
)
_OPTIMIZER = flags.DEFINE_enum("optimizer", "momentum", ["momentum", "adam"], "The optimizer.")
_EPOCHS = flags.DEFINE_integer("epochs", 10, "The number of epochs.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 24, "Examples per step, over all replicas.")
# By default the last of the five batches of an epoch has 9 examples.
_EXAMPLES = flags.DEFINE_integer("examples", 105, "The number of examples.")
_WEIGHTS = flags.DEFINE_string("weights", None, "The file of the weights.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The output directory.", required=True)

WORDS = 50


class Subclassed(tf.keras.Model):
    """Its first half is in stage 0, and the second in stage 1; it computes between its layers."""

    def __init__(self) -> None:
        super().__init__()
        with stage(0):
            self.first = tf.keras.layers.Dense(32, "relu")
            self.second = tf.keras.layers.Dense(32, "relu")
        with stage(1):
            self.third = tf.keras.layers.Dense(32, "relu")
            self.last = tf.keras.layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        first = self.first(inputs)
        return self.last(self.third(self.second(first)) + first * 0.5)


def layers() -> Any:
    """The model of `--model`."""
    dense = tf.keras.layers.Dense
    if _MODEL.value == "subclassed":
        return Subclassed()
    if _MODEL.value == "text":
        return tf.keras.Sequential(
            [
                tf.keras.layers.Embedding(WORDS, 16, mask_zero=True),
                tf.keras.layers.LSTM(16),
                dense(16, "tanh"),
                dense(4),
            ]
        )
    inputs = tf.keras.Input([20])
    if _MODEL.value == "functional":
        first = dense(32, "relu", kernel_regularizer=tf.keras.regularizers.L2(0.01))(inputs)
        second = dense(32, "relu")(first)
        third = tf.keras.layers.add([first, dense(32, "relu")(second)])
        return tf.keras.Model(inputs, dense(4)(third))
    return tf.keras.Sequential(
        [inputs, dense(32, "relu"), dense(32, "relu"), dense(32, "relu"), dense(4)]
    )


def build_model(job: tfdist.Job) -> Any:
    tf.keras.utils.set_random_seed(1)
    model = layers()
    optimizers = tf.keras.optimizers
    model.compile(
        # With more, rounding decides the direction of Adam's steps for weights of small gradients.
        optimizers.Adam(0.003)
        if _OPTIMIZER.value == "adam"
        else optimizers.SGD(0.02, momentum=0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if not model.built:
        model.build((None, 20))
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(0, 0.2, w.shape).astype(w.dtype) for w in model.get_weights()])
    return model


def examples(context: tf.distribute.InputContext) -> tf.data.Dataset:
    rng = np.random.default_rng(3)
    inputs: Any = rng.normal(size=(_EXAMPLES.value, 20)).astype("float32")
    if _MODEL.value == "text":
        inputs = rng.integers(0, WORDS, size=(_EXAMPLES.value, 20))
    labels = rng.integers(0, 4, size=_EXAMPLES.value)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(_BATCH_SIZE.value // context.num_replicas_in_sync)


def print_places(kind: str, variables: Sequence[Any]) -> None:
    """Prints the shape and the device of each variable that is not a scalar."""
    for variable in tfdist.compat.keras.as_tensorflow(variables):
        if variable.shape.rank:
            print(kind, "x".join(map(str, variable.shape)), variable.device)


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(
        build_model,
        examples,
        epochs=_EPOCHS.value,
        output_dir=_OUTPUT_DIR.value,
        validation=examples,
    )
    model = history.model
    print({name: values[-1] for name, values in history.history.items()})
    if _WEIGHTS.value and job.is_chief:
        np.savez(_WEIGHTS.value, *model.get_weights())
    print_places("variable", model.trainable_variables)
    variables = model.optimizer.variables
    print_places("slot", variables() if callable(variables) else variables)


if __name__ == "__main__":
    tfdist.run(main)
