"""Horovod's MNIST Estimator example, on digits or MNIST, under Horovod or any other strategy.

    tfdist run --strategy=horovod --workers=2 \\
        examples/mnist_horovod_estimator.py --output_dir=/tmp/run \\
        --train_steps=200 --learning_rate=0.01
    horovodrun -np 2 python examples/mnist_horovod_estimator.py --output_dir=/tmp/run …

The script does not depend on Horovod: the learning rate, steps and shards come from the job.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow as tf
from absl import flags

import tfdist.estimator

# The directory of `estimators`, which is not in the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from estimators.mnist import model_fn, serving_input_receiver_fn
from tfdist.data import mnist

flags.DEFINE_string("data_source", "digits", "digits, mnist or fashion_mnist.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("train_steps", 20000, "Steps, divided by the replicas.", lower_bound=1)
flags.DEFINE_integer("batch_size", 100, "Batch size of a replica.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.001, "Learning rate of one replica; scaled by the replicas.")
FLAGS = flags.FLAGS


@tfdist.estimator.main
def main(job: tfdist.estimator.EstimatorJob) -> None:
    data = mnist.load(FLAGS.data_source)

    def train_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        return mnist.dataset(
            *data["train"], input_context, batch_size=FLAGS.batch_size, shuffle=True, repeat=True
        )

    def eval_input() -> tf.data.Dataset:
        return mnist.dataset(*data["test"], batch_size=FLAGS.batch_size)

    estimator = tf.estimator.Estimator(
        model_fn,
        config=tfdist.estimator.RunConfig(job, FLAGS.output_dir),
        params={"learning_rate": job.scaled_lr(FLAGS.learning_rate)},
    )
    speed = tfdist.estimator.ExamplesPerSecondHook(
        batch_size=job.global_batch_size(FLAGS.batch_size), every_n_steps=100
    )
    steps = max(1, FLAGS.train_steps // job.num_replicas)
    metrics = tfdist.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input, steps, hooks=[speed]),
        tf.estimator.EvalSpec(eval_input, steps=None),
    )
    if metrics is not None:
        print(f"test accuracy {metrics['accuracy']:.4f}")
    tfdist.estimator.export(estimator, serving_input_receiver_fn)


if __name__ == "__main__":
    tfdist.estimator.run(main)
