"""Trains a ResNet on CIFAR-10, or on digits in its format, under any strategy.

    tfdist data cifar10 --data_dir=/tmp/digits --source=digits
    python examples/cifar10_main.py --data_dir=/tmp/digits --output_dir=/tmp/run

To train on a cluster, run the same command on every node, with TF_CONFIG or with `--job_name
--task_index --worker_hosts …`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow as tf
from absl import flags

# The directory of `estimators`, which is not in the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from estimators.resnet import cifar_resnet
from tfdist.data import cifar10

flags.DEFINE_string("data_dir", None, "Directory of the TFRecords.", required=True)
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("num_layers", 44, "Layers of the ResNet, 6n+2.")
flags.DEFINE_integer("train_epochs", 256, "Epochs to train for.", lower_bound=1)
flags.DEFINE_integer("train_batch_size", 128, "Training batch size of a task.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 100, "Evaluation batch size of a replica.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Learning rate of one replica; scaled with the replicas.")
flags.DEFINE_list("decay_epochs", ["82", "123", "300"], "Epochs at which the rate decays.")
flags.DEFINE_float("momentum", 0.9, "Momentum of SGD.")
flags.DEFINE_float("weight_decay", 2e-4, "L2 regularization of the kernels.")
flags.DEFINE_float("batch_norm_decay", 0.997, "Momentum of the moving statistics.")
flags.DEFINE_float("batch_norm_epsilon", 1e-5, "Added to the variance.")
flags.DEFINE_bool("use_distortion_for_training", True, "Crop the training images randomly.")
flags.DEFINE_bool("use_flip_for_training", True, "Flip them randomly; wrong for digits.")
flags.DEFINE_integer("seed", None, "Makes weights, order and distortions reproducible.")
FLAGS = flags.FLAGS

# The factors of --learning_rate after each of --decay_epochs.
DECAYS = (0.1, 0.01, 0.002)

flags.register_validator(
    "decay_epochs",
    lambda epochs: 0 < len(epochs) <= len(DECAYS) and all(epoch.isdigit() for epoch in epochs),
    "must be one to three comma-separated integers",
)


def build_model(job: tfdist.Job) -> tf.keras.Model:
    """A compiled ResNet; its learning-rate schedule is in epochs, for any number of workers."""
    examples = cifar10.num_examples(FLAGS.data_dir, "train")
    per_replica = job.per_replica_batch_size(FLAGS.train_batch_size)
    steps_per_epoch = job.steps_per_epoch(examples, per_replica)
    epochs = [int(epoch) for epoch in FLAGS.decay_epochs]
    rate = job.scaled_lr(FLAGS.learning_rate)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
        [epoch * steps_per_epoch for epoch in epochs],
        [rate * decay for decay in (1.0, *DECAYS[: len(epochs)])],
    )
    model = cifar_resnet(
        FLAGS.num_layers,
        weight_decay=FLAGS.weight_decay,
        batch_norm_decay=FLAGS.batch_norm_decay,
        batch_norm_epsilon=FLAGS.batch_norm_epsilon,
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(schedule, momentum=FLAGS.momentum),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def eval_input(split: str, context: tf.distribute.InputContext) -> tf.data.Dataset:
    return cifar10.dataset(FLAGS.data_dir, split, context, batch_size=FLAGS.eval_batch_size)


@tfdist.main
def main(job: tfdist.Job) -> None:
    if FLAGS.seed is not None:
        tf.keras.utils.set_random_seed(FLAGS.seed)
    per_replica = job.per_replica_batch_size(FLAGS.train_batch_size)

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return cifar10.dataset(
            FLAGS.data_dir,
            "train",
            context,
            batch_size=per_replica,
            shuffle=True,
            distort=FLAGS.use_distortion_for_training,
            flip=FLAGS.use_distortion_for_training and FLAGS.use_flip_for_training,
            seed=FLAGS.seed,
        )

    history = job.fit(
        build_model,
        train_input,
        epochs=FLAGS.train_epochs,
        validation=partial(eval_input, "validation"),
        output_dir=FLAGS.output_dir,
    )
    results = job.evaluate(history.model, partial(eval_input, "eval"))
    if job.is_chief:
        print(f"test accuracy {results['accuracy']:.4f}")


if __name__ == "__main__":
    tfdist.run(main)
