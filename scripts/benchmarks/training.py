"""The flags, model, images and marks that the Keras scripts of the benchmarks share.

This module does not configure TensorFlow: import TensorFlow or tfdist first.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import flags

from estimators.resnet import cifar_resnet
from scripts.benchmarks.marks import Marks

flags.DEFINE_integer("batch_size", 64, "Images per process and step.")
flags.DEFINE_integer("steps", 20, "Steps per process and epoch.")
flags.DEFINE_integer("epochs", 4, "Epochs; the first is the warm-up.")
flags.DEFINE_integer("steps_per_execution", 1, "Keras's `steps_per_execution`.")
FLAGS = flags.FLAGS


def compiled(optimizer: tf.keras.optimizers.Optimizer) -> tf.keras.Model:
    """A compiled ResNet-20 for images of CIFAR-10's size, without weight decay."""
    model = cifar_resnet(20, weight_decay=None)
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=FLAGS.steps_per_execution,
    )
    return model


def images(count: int) -> tf.data.Dataset:
    """Noise images in memory, float32 [32, 32, 3] from 0 to 255, with int32 labels."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, [count, 32, 32, 3], np.uint8)
    labels = generator.integers(0, 10, [count], np.int32)
    return tf.data.Dataset.from_tensor_slices((pixels.astype(np.float32), labels))


class MarksCallback(tf.keras.callbacks.Callback):
    """Records the first and last step and all epochs; `writes` is that of `Marks`."""

    def __init__(self, writes: bool = True) -> None:
        super().__init__()
        # Otherwise Keras rejects step callbacks with parameter servers, and waits for the logs.
        self._supports_tf_logs = True
        self._marks = Marks(writes)
        self._is_scheduled = False

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._marks.epoch_begins()

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

    def on_train_end(self, logs: object = None) -> None:
        self._marks.write()
