"""What the Keras scripts of the benchmark have in common: flags, model, images, marks.

It leaves TensorFlow as it is: import TensorFlow, or tfdist, before it.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import flags

from estimators.resnet import cifar_resnet
from scripts.benchmarks.marks import Marks

flags.DEFINE_integer("batch_size", 64, "Images a process trains on at a time.")
flags.DEFINE_integer("steps", 20, "Steps of a process in an epoch.")
flags.DEFINE_integer("epochs", 4, "Epochs; the first warms up.")
flags.DEFINE_integer("steps_per_execution", 1, "Steps that Keras makes at a time.")
FLAGS = flags.FLAGS


def compiled(optimizer: tf.keras.optimizers.Optimizer) -> tf.keras.Model:
    """ResNet-20 for images of CIFAR-10's size, without weight decay."""
    model = cifar_resnet(20, weight_decay=None)
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=FLAGS.steps_per_execution,
    )
    return model


def images(count: int) -> tf.data.Dataset:
    """Images of noise, float32 [32, 32, 3] from 0 to 255, with labels, int32; held in memory."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, [count, 32, 32, 3], np.uint8)
    labels = generator.integers(0, 10, [count], np.int32)
    return tf.data.Dataset.from_tensor_slices((pixels.astype(np.float32), labels))


class MarksCallback(tf.keras.callbacks.Callback):
    """Notes when the first and the last step end, and the epochs; `writes` is that of `Marks`."""

    def __init__(self, writes: bool = True) -> None:
        super().__init__()
        # Else Keras refuses a callback of steps with a parameter server, and waits for logs.
        self._supports_tf_logs = True
        self._marks = Marks(writes)
        self._is_scheduled = False

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._marks.epoch_begins()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if self._is_scheduled:
            return
        if isinstance(logs, tf.distribute.experimental.coordinator.RemoteValue):
            # With a parameter server the others are waited for at the end of the epoch.
            logs.get()
            self._is_scheduled = True
        self._marks.step_ends()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if self._is_scheduled:
            self._marks.step_ends()
        self._marks.epoch_ends()

    def on_train_end(self, logs: object = None) -> None:
        self._marks.write()
