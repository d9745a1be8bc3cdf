"""Trains a ResNet-18 on Fashion-MNIST, or on digits, with all devices of one machine.

    python examples/fashion_mnist_mirrored.py --strategy=mirrored --output_dir=/tmp/run
    python examples/fashion_mnist_mirrored.py --strategy=mirrored --num_cpu_devices=2 \\
        --data_source=digits --batch_size=32 --learning_rate=0.02 --width=16 --output_dir=/tmp/run

Each device has a copy of the model (He et al. 2015, arXiv:1512.03385). A step gives each of them
`--batch_size` images and sums their gradients, so the batch of a step grows with the number of
devices. The learning rate grows with it: in the first epochs, from that of one device (Goyal et al.
2017, arXiv:1706.02677).

Prints the seconds, the learning rate and the test accuracy of each epoch, and plots
learning_curves.png in the output directory. The first epoch of a process includes the time to trace
the model. The same script runs under every other strategy.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow as tf
from absl import flags

from tfdist.data import mnist
from tfdist.tools.watch import curves

flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_string(
    "data_source",
    "fashion_mnist",
    "fashion_mnist, mnist, or digits (needs no download).",
)
# With AVX-512, oneDNN's gradient of a strided 1x1 convolution of fewer than 16 channels writes past
# its memory, and the process crashes: https://github.com/uxlfoundation/oneDNN/issues/6035
flags.DEFINE_integer("width", 64, "Filters of the first of four groups.", lower_bound=16)
flags.DEFINE_integer("epochs", 10, "Epochs to train for.", lower_bound=1)
flags.DEFINE_integer("warmup_epochs", 2, "Epochs in which the rate grows.", lower_bound=0)
flags.DEFINE_integer("batch_size", 256, "Batch size of a replica.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Learning rate of one replica; scaled with the replicas.")
FLAGS = flags.FLAGS

flags.register_multi_flags_validator(
    ["warmup_epochs", "epochs"],
    lambda values: values["warmup_epochs"] < values["epochs"],
    "--warmup_epochs must be less than --epochs",
)


def resnet18(width: int) -> tf.keras.Model:
    """A ResNet-18 for small images: its first convolution keeps their size.

    Args:
      width: the filters of the first group; each group has twice as many as the one before it.

    Returns:
      A model that maps images, float32 [batch, 28, 28, 1], to logits, float32 [batch, 10].
    """

    def convolution(x: tf.Tensor, filters: int, strides: int = 1, size: int = 3) -> tf.Tensor:
        x = tf.keras.layers.Conv2D(
            filters,
            size,
            strides,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
        )(x)
        return tf.keras.layers.BatchNormalization(momentum=0.9)(x)

    def block(x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
        y = tf.keras.layers.ReLU()(convolution(x, filters, strides))
        y = convolution(y, filters)
        if strides > 1:
            x = convolution(x, filters, strides, size=1)
        return tf.keras.layers.ReLU()(tf.keras.layers.Add()([x, y]))

    images = tf.keras.Input([mnist.IMAGE_SIZE, mnist.IMAGE_SIZE, 1], name="images")
    x = tf.keras.layers.ReLU()(convolution(images, width))
    for group in range(4):
        x = block(x, width * 2**group, strides=2 if group else 1)
        x = block(x, width * 2**group, strides=1)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(images, tf.keras.layers.Dense(mnist.NUM_CLASSES, name="logits")(x))


def learning_rate(job: tfdist.Job, examples: int) -> tf.keras.optimizers.schedules.CosineDecay:
    """The rate by step: linear to the scaled rate in the warm-up, then along a cosine to 0.

    A checkpoint contains the number of steps, so a job that resumes with as many devices continues
    on the curve.
    """
    steps = job.steps_per_epoch(examples, FLAGS.batch_size)
    return tf.keras.optimizers.schedules.CosineDecay(
        FLAGS.learning_rate,
        decay_steps=(FLAGS.epochs - FLAGS.warmup_epochs) * steps,
        warmup_target=job.scaled_lr(FLAGS.learning_rate),
        warmup_steps=FLAGS.warmup_epochs * steps,
    )


def build_model(job: tfdist.Job, examples: int) -> tf.keras.Model:
    model = resnet18(FLAGS.width)
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate(job, examples), momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class EpochLogs(tf.keras.callbacks.Callback):
    """Adds an epoch's `seconds` of training and the `learning_rate` at its end to the logs."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._started = time.monotonic()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._seconds = time.monotonic() - self._started

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["seconds"] = self._seconds
            # A variable with a copy per device in Keras 2, a tensor in Keras 3.
            logs["learning_rate"] = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))


@tfdist.main
def main(job: tfdist.Job) -> None:
    data = mnist.load(FLAGS.data_source)
    train_input = partial(mnist.dataset, *data["train"], batch_size=FLAGS.batch_size, shuffle=True)
    test_input = partial(mnist.dataset, *data["test"], batch_size=FLAGS.batch_size)
    history = job.fit(
        partial(build_model, examples=len(data["train"].labels)),
        train_input,
        epochs=FLAGS.epochs,
        validation=test_input,
        output_dir=FLAGS.output_dir,
        callbacks=[EpochLogs()],
    )
    if job.is_chief:
        for index, epoch in enumerate(history.epoch):
            seconds, rate, accuracy = (
                history.history[name][index]
                for name in ("seconds", "learning_rate", "val_accuracy")
            )
            print(
                f"epoch {epoch + 1}: {seconds:.1f} s, learning rate {rate:.2g}, "
                f"test accuracy {accuracy:.4f}"
            )
        curves.plot([FLAGS.output_dir], Path(FLAGS.output_dir, "learning_curves.png"))


if __name__ == "__main__":
    tfdist.run(main)
