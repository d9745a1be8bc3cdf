"""Trains a small model with `job.fit`, which may execute several of its steps at once."""

from __future__ import annotations

import tfdist  # isort: skip

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

from tfdist.training import steps_per_execution
from tfdist.training.steps_per_execution import StepsPerExecution

FLAGS = flags.FLAGS
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_string("result_dir", None, "Directory for the results.", required=True)
flags.DEFINE_bool("single", False, "Whether a callback wants each step.")
flags.DEFINE_integer("epochs", 2, "Epochs of 240 steps.")
_STEPS = 240


def build_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.Input([8]),
            tf.keras.layers.Dense(8, "relu"),
            tf.keras.layers.LayerNormalization(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def points(context: tf.distribute.InputContext) -> tf.data.Dataset:
    inputs = np.random.default_rng(0).normal(size=(2 * 2 * _STEPS, 8)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1] * inputs[:, 1:2]))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.shuffle(1000, seed=3).batch(2)


def slow(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """The points, slow enough for a signal to arrive within an epoch."""
    return points(context).map(
        lambda *batch: tf.nest.map_structure(
            lambda part: tf.ensure_shape(
                tf.numpy_function(_rest, [part], part.dtype, stateful=False), part.shape
            ),
            batch,
        )
    )


def _rest(part: np.ndarray) -> np.ndarray:
    time.sleep(0.002)
    return part


def record_all_reduces() -> list[str]:
    """A list that gets the type and size of each all-reduce that TensorFlow traces."""
    kinds: list[str] = []
    reduce = CollectiveReplicaLauncher.all_reduce

    def recording(launcher: Any, tensor: tf.Tensor, *args: Any, **options: Any) -> tf.Tensor:
        if not tf.executing_eagerly():
            kinds.append(f"{tensor.dtype.name} {tensor.shape.num_elements()}")
        return reduce(launcher, tensor, *args, **options)

    CollectiveReplicaLauncher.all_reduce = recording
    return kinds


@tfdist.main
def main(job: tfdist.Job) -> None:
    all_reduces = record_all_reduces()
    # Choose early, in a training that is short, and several steps, however slow the machine is.
    steps_per_execution._FIRST_MEASURED = 16
    steps_per_execution._MEASURED_SECONDS = 0.0
    steps_per_execution._EXECUTION_SECONDS = 10.0
    sizes = [1]
    use = StepsPerExecution._use

    def recording(callback: StepsPerExecution, steps: int) -> None:
        sizes.append(steps)
        use(callback, steps)

    setattr(StepsPerExecution, use.__name__, recording)
    on_batch = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    history = job.fit(
        build_model,
        slow,
        validation=points,
        epochs=FLAGS.epochs,
        output_dir=FLAGS.output_dir,
        save_steps=40,
        callbacks=[on_batch] if FLAGS.single else [],
        verbose=0,
    )
    Path(FLAGS.result_dir).mkdir(exist_ok=True, parents=True)
    np.savez(
        Path(FLAGS.result_dir, f"{job.task.type}-{job.task.index}.npz"),
        weights=np.concatenate([each.numpy().ravel() for each in history.model.weights]),
        losses=history.history["loss"],
        validated=history.history["val_mae"],
        steps_per_execution=max(sizes),
        all_reduces=all_reduces,
    )


if __name__ == "__main__":
    tfdist.run(main)
