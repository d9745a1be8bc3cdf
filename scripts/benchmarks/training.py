"""The flags, models, data and marks that the Keras scripts of the benchmarks share.

This module does not configure TensorFlow: import TensorFlow or tfdist first.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import flags

from estimators.resnet import cifar_resnet
from scripts.benchmarks.arithmetic import (
    IMAGE_MODELS,
    MODELS,
    NUM_LAYERS,
    UNITS,
    VGG_FILTERS,
    VGG_UNITS,
)
from scripts.benchmarks.marks import Marks

flags.DEFINE_integer("batch_size", 64, "Images per process and step.")
flags.DEFINE_integer("steps", 20, "Steps per process and epoch.")
flags.DEFINE_integer("epochs", 4, "Epochs; the first is the warm-up.")
flags.DEFINE_integer("steps_per_execution", 1, "Keras's `steps_per_execution`; 0 for none given.")
flags.DEFINE_enum("model", "resnet20", MODELS, "The model; mlp has small steps.")
flags.DEFINE_string("policy", None, "The policy of mixed precision in a hand-written script.")
flags.DEFINE_integer("num_layers", NUM_LAYERS, "The layers of the ResNet.")
flags.DEFINE_integer("rows", 10_000, "The rows of the table of the model embedding.")
FLAGS = flags.FLAGS

_FEATURES = 32
#: The ids of an example of the model embedding, and the columns of its table.
IDS, COLUMNS = 32, 64


def compiled(optimizer: tf.keras.optimizers.Optimizer) -> tf.keras.Model:
    """The compiled model of `--model`.

    `resnet20` is ResNet-20 for images of CIFAR-10's size, without weight decay, or a ResNet of
    `--num_layers`. `mlp` is so small that the time of its step is the time of the runtime.
    `vgg` computes in its convolutions, and most of its 6.6 million weights are in the dense layers
    after them. `wide_mlp` multiplies large matrices. `embedding` is a table of `--rows` and a dense
    layer.
    """
    if FLAGS.policy:
        tf.keras.mixed_precision.set_global_policy(FLAGS.policy)
    if FLAGS.model == "resnet20":
        model = cifar_resnet(FLAGS.num_layers, weight_decay=None)
    elif FLAGS.model == "vgg":
        model = vgg()
    elif FLAGS.model == "embedding":
        model = embedding()
    else:
        model = mlp(UNITS[FLAGS.model])
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Keras 3 turns it on by itself where it can.
        jit_compile=False,
        # Only Keras 2 accepts None.
        **({"steps_per_execution": steps} if (steps := FLAGS.steps_per_execution) else {}),
    )
    return model


def mlp(units: int) -> tf.keras.Model:
    """Four dense layers, and logits of 10 classes; from float32 [batch, 32]."""
    hidden = [tf.keras.layers.Dense(units, "relu") for _ in range(4)]
    logits = tf.keras.layers.Dense(10, dtype="float32")
    return tf.keras.Sequential([tf.keras.Input([_FEATURES]), *hidden, logits])


def vgg() -> tf.keras.Model:
    """Six convolutions, two wide dense layers, and logits of 10 classes; from images."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([32, 32, 3]), layers.Rescaling(1 / 128, -1.0)])
    for filters in VGG_FILTERS:
        for _ in range(2):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    for units in VGG_UNITS:
        model.add(layers.Dense(units, "relu"))
    model.add(layers.Dense(10, dtype="float32"))
    return model


def embedding() -> tf.keras.Model:
    """The mean of `IDS` rows of a table, and logits of 10 classes; from int32 [batch, IDS]."""
    inputs = tf.keras.Input([IDS], dtype="int32")
    rows = tf.keras.layers.Embedding(FLAGS.rows, COLUMNS)(inputs)
    mean = tf.keras.layers.GlobalAveragePooling1D()(rows)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(mean))


def frequent_ids(count: int, rows: int) -> np.ndarray:
    """Ids of rows, int32 [count, IDS]; a few are much more frequent than others (Zipf's law)."""
    ids = np.random.default_rng(0).zipf(1.2, [count, IDS]) % rows
    return ids.astype(np.int32)


def examples(count: int) -> tf.data.Dataset:
    """The data of `--model`, noise in memory: inputs, and int32 labels from 0 to 9.

    The inputs are those of `images`, those of `frequent_ids`, or float32 [32] for an MLP. Other
    models than the ResNet have at most 4096 different examples: a job of many workers would
    otherwise need much memory for data that teach nothing.
    """
    if FLAGS.model in IMAGE_MODELS:
        return images(count)
    generator = np.random.default_rng(0)
    different = min(count, 4096)
    if FLAGS.model == "embedding":
        features = frequent_ids(different, FLAGS.rows)
    else:
        features = generator.normal(size=[different, _FEATURES]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(
        (features, generator.integers(0, 10, [different], np.int32))
    )
    return dataset.repeat().take(count)


def images(count: int) -> tf.data.Dataset:
    """Noise images in memory, float32 [32, 32, 3] from 0 to 255, with int32 labels."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, [count, 32, 32, 3], np.uint8)
    labels = generator.integers(0, 10, [count], np.int32)
    return tf.data.Dataset.from_tensor_slices((pixels.astype(np.float32), labels))


class EpochMarks(tf.keras.callbacks.Callback):
    """Records all epochs, with the end of the first one as the first step.

    Args:
      writes: as for `Marks`.
    """

    def __init__(self, writes: bool = True) -> None:
        super().__init__()
        self._marks = Marks(writes)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._marks.epoch_begins()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._marks.step_ends()
        self._marks.epoch_ends()

    def on_train_end(self, logs: object = None) -> None:
        self._marks.write()


class MarksCallback(EpochMarks):
    """Records the first and last step, too."""

    def __init__(self, writes: bool = True) -> None:
        super().__init__(writes)
        # Otherwise Keras rejects step callbacks with parameter servers, and waits for the logs.
        self._supports_tf_logs = True
        self._is_scheduled = False

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if self._is_scheduled:
            return
        if isinstance(logs, tf.distribute.experimental.coordinator.RemoteValue):
            # With parameter servers, later steps only wait at the end of the epoch.
            logs.get()
            self._is_scheduled = True
        self._marks.step_ends()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if self._is_scheduled:
            self._marks.step_ends()
        self._marks.epoch_ends()
