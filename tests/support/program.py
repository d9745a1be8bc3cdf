"""Trains a small model and counts how often each example is used; tests run it as a cluster.

Example i of n has the features sin(i·k) and a smooth function of them as its target; `Seen` counts
how often each is used. Each task writes its results to `--result_dir`, such as `worker-0.npz`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags

tfdist.define_flags()
flags.DEFINE_integer("examples", 40, "Training examples.")
flags.DEFINE_integer("eval_examples", 11, "Evaluation examples.")
flags.DEFINE_integer("batch_size", 4, "Examples per replica batch.")
flags.DEFINE_integer("epochs", 2, "Epochs.")
flags.DEFINE_bool("batch_norm", False, "Add batch normalization.")
flags.DEFINE_bool("shuffle", False, "Shuffle, in the same order in each run.")
flags.DEFINE_bool("whole_input", False, "Input functions without a parameter, which shuffle.")
flags.DEFINE_bool("known_size", True, "Whether the datasets know their cardinality.")
flags.DEFINE_bool("validate", False, "Validate after each epoch.")
flags.DEFINE_integer("save_steps", None, "Also save after this many steps.")
flags.DEFINE_float("rest", 0.0, "Seconds to sleep after each step that callbacks see, or epoch.")
flags.DEFINE_integer("fail_in_epoch", None, "Raise an error at the end of this epoch, from 1.")
flags.DEFINE_integer("stop_after", None, "In worker:1, set stop_training after so many steps.")
flags.DEFINE_string("fail_task", None, "The task that fails then; default: all.")
flags.DEFINE_bool("input_layer", True, "Whether the model is built before training.")
flags.DEFINE_bool("own_train_step", False, "Whether the model has a custom train step.")
flags.DEFINE_bool("adam", False, "Train with Adam instead of SGD with momentum.")
flags.DEFINE_integer("units", 8, "Width of the hidden layer.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_string("result_dir", None, "Directory for each task's results.", required=True)
FLAGS = flags.FLAGS


class Seen(tf.keras.metrics.Metric):
    """Counts how often each example was used in this epoch; its result is the sum of the counts."""

    def __init__(self, examples: int) -> None:
        super().__init__(name="seen")
        self.counts = self.add_weight(name="counts", shape=(examples,), initializer="zeros")

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:
        indices = tf.cast(labels[:, 1], tf.int32)
        self.counts.assign_add(tf.reduce_sum(tf.one_hot(indices, self.counts.shape[0]), axis=0))

    def result(self) -> tf.Tensor:
        return tf.reduce_sum(self.counts)

    def reset_state(self) -> None:
        self.counts.assign(tf.zeros(self.counts.shape))


class CustomTrainStep(tf.keras.Sequential):
    """Has a custom train step, as in the Keras guides, and stores its gradients in variables."""

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        if not hasattr(self, "gradients"):
            self.gradients = [
                tf.Variable(tf.zeros_like(variable), trainable=False)
                for variable in self.trainable_variables
            ]

    def train_step(self, data: Any) -> dict[str, Any]:
        features, labels = data
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            lost = self.compute_loss(features, labels, predictions, None)
        gradients = tape.gradient(lost, self.trainable_variables)
        self.optimizer.apply_gradients([])
        for variable, gradient in zip(self.gradients, gradients, strict=True):
            variable.assign(gradient)
        self.optimizer.apply_gradients(zip(self.gradients, self.trainable_variables, strict=True))
        return {"loss": lost, **self.compute_metrics(features, labels, predictions, None)}


class RecordCounts(tf.keras.callbacks.Callback):
    """Records the counts and logs of each epoch; reads the counts before validation resets them."""

    def __init__(self, task: str, seen: Seen) -> None:
        super().__init__()
        self._task = task
        self._seen = seen
        self.epochs: list[np.ndarray] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._read = False

    def on_test_begin(self, logs: Any = None) -> None:
        self.read_counts()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read_counts()
        self.logs.append(dict(logs))
        if FLAGS.fail_in_epoch == epoch + 1 and FLAGS.fail_task in (None, self._task):
            raise RuntimeError(f"failing in epoch {epoch + 1}, as requested")

    def read_counts(self) -> None:
        if not self._read:
            self.epochs.append(tf.convert_to_tensor(self._seen.counts).numpy())
            self._read = True


class Steps(tf.keras.callbacks.Callback):
    """Sleeps after each step, and records `seen` in the logs of the last step of each epoch."""

    def __init__(self, stop_after: int | None) -> None:
        super().__init__()
        self.last_seen: list[float] = []
        self._stop_after = stop_after
        self._steps = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.last_seen.append(0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # A resumed Keras 3 job skips steps without running them; their logs are empty.
        self.last_seen[-1] = logs.get("seen", 0.0)
        self._steps += 1
        if self._steps == self._stop_after:
            self.model.stop_training = True
        time.sleep(FLAGS.rest)


class RestAfterEpochs(tf.keras.callbacks.Callback):
    """Sleeps after each epoch, where callbacks do not see steps."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        time.sleep(FLAGS.rest)


# The shape of the predictions in each trace of a step.
traces: list[tf.TensorShape] = []


def loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    traces.append(predictions.shape)
    return error(labels, predictions)


def error(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    return tf.square(labels[:, 0] - predictions[:, 0])


def examples(count: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
    def make(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = tf.cast(indices, tf.float32)[:, tf.newaxis]
        features = tf.sin(index * tf.constant([[0.7, 1.3, 2.1, 3.7]]))
        target = tf.reduce_sum(features * features, axis=1, keepdims=True)
        return features, tf.concat([target, index], axis=1)

    dataset = tf.data.Dataset.range(count)
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    if FLAGS.shuffle:
        dataset = dataset.shuffle(count, seed=7, reshuffle_each_iteration=True)
    if FLAGS.whole_input:
        dataset = dataset.shuffle(count)
    if not FLAGS.known_size:
        dataset = dataset.filter(lambda _: True)
    return dataset.batch(FLAGS.batch_size).map(make)


def build(job: tfdist.Job) -> tuple[tf.keras.Model, Seen]:
    if FLAGS.input_layer:
        tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(FLAGS.units, activation="tanh")]
    if FLAGS.input_layer:
        layers.insert(0, tf.keras.layers.Input([4]))
    if FLAGS.batch_norm:
        layers.append(tf.keras.layers.BatchNormalization())
    kind = CustomTrainStep if FLAGS.own_train_step else tf.keras.Sequential
    model = kind([*layers, tf.keras.layers.Dense(1)])
    optimizers = tf.keras.optimizers
    optimizer = job.wrap_optimizer(
        optimizers.Adam(0.02) if FLAGS.adam else optimizers.SGD(0.02, momentum=0.9)
    )
    seen = Seen(max(FLAGS.examples, FLAGS.eval_examples))
    model.compile(optimizer=optimizer, loss=loss, metrics=[seen, error])
    return model, seen


def main(_: list[str]) -> None:
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        model, seen = build(job)

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return examples(FLAGS.examples, context)

    def eval_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return examples(FLAGS.eval_examples, context)

    def whole_train_input() -> tf.data.Dataset:
        return train_input(tf.distribute.InputContext())

    def whole_eval_input() -> tf.data.Dataset:
        return eval_input(tf.distribute.InputContext())

    training: Any = whole_train_input if FLAGS.whole_input else train_input
    validation: Any = whole_eval_input if FLAGS.whole_input else eval_input
    if job.evaluates:
        job.evaluate(model, validation, FLAGS.output_dir, epochs=FLAGS.epochs)
        return
    counts = RecordCounts(str(job.task), seen)
    steps = Steps(FLAGS.stop_after if str(job.task) == "worker:1" else None)
    result = Path(FLAGS.result_dir) / f"{job.task.type}-{job.task.index}.npz"
    result.parent.mkdir(parents=True, exist_ok=True)
    callbacks = job.callbacks(
        FLAGS.output_dir,
        save_steps=FLAGS.save_steps,
    )
    try:
        model.fit(
            job.dataset(training),
            epochs=FLAGS.epochs,
            validation_data=job.eval_dataset(validation) if FLAGS.validate else None,
            # With parameter servers, Keras 2 does not support callbacks with step methods.
            callbacks=[
                *callbacks,
                counts,
                steps if job._strategy.cursor.sees_steps else RestAfterEpochs(),
            ],
            verbose=2 if job.is_chief else 0,
        )
    except SystemExit:
        # Preempted in mid-epoch.
        counts.read_counts()
        np.savez(result, counts=np.array(counts.epochs))
        raise
    traces_of_fit = len(traces)
    evaluated = job.evaluate(model, validation)
    if not job.is_chief and job.name == "parameter_server":
        raise AssertionError("only the chief of a parameter-server job gets here")
    np.savez(
        result,
        counts=np.array(counts.epochs),
        losses=np.array([logs["loss"] for logs in counts.logs]),
        val_losses=np.array([logs.get("val_loss", 0.0) for logs in counts.logs]),
        val_seen=np.array([logs.get("val_seen", 0.0) for logs in counts.logs]),
        last_seen=np.array(steps.last_seen),
        steps=model.optimizer.iterations.numpy(),
        traces=traces_of_fit,
        partitioned=any("part_1" in variable.name for variable in model.variables),
        evaluated_seen=evaluated["seen"],
        evaluated_loss=evaluated["loss"],
        weights=np.concatenate([weight.flatten() for weight in model.get_weights()]),
    )


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
