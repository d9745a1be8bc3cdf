"""The script of each task of `tfdist test`: trains a linear model for 20 steps.

Each task that trains writes its weights and the number of replicas to `--result_dir`.
"""

from __future__ import annotations

from pathlib import Path

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags

from tfdist.tools.selftest import problem

FLAGS = flags.FLAGS


def build_model() -> tf.keras.Model:
    """A linear model without a bias, whose weights are zeros."""
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tf.keras.Sequential([tf.keras.Input([problem.FEATURES]), layer])
    model.compile(tf.keras.optimizers.SGD(problem.LEARNING_RATE), "mse")
    return model


def examples(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """The shard of a task, repeated, so that each step has all examples."""
    replicas, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
    inputs, targets = problem.examples(replicas)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets))
    shard = dataset.shard(pipelines, context.input_pipeline_id)
    # Asynchronous updates have one replica, and a pipeline in each worker.
    size = len(inputs) // max(replicas, pipelines)
    return shard.batch(size, drop_remainder=True).repeat()


@tfdist.main
def main(job: tfdist.Job) -> None:
    """Trains, and writes the weights."""
    history = job.fit(
        build_model,
        examples,
        epochs=problem.EPOCHS,
        steps_per_epoch=problem.STEPS,
        output_dir=FLAGS.output_dir,
        verbose=0,
    )
    np.savez(
        Path(FLAGS.result_dir, f"{job.task.type}-{job.task.index}.npz"),
        weights=history.model.get_weights()[0],
        replicas=job.num_replicas,
    )


if __name__ == "__main__":
    flags.DEFINE_string("output_dir", None, "The output directory.", required=True)
    flags.DEFINE_string("result_dir", None, "The directory of the weights.", required=True)
    tfdist.run(main)
