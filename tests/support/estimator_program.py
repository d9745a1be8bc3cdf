"""Trains a small Estimator and counts how often each example is used; tests run it as a cluster.

Example i has the features sin(i·k) and a smooth function of them as its target. Each task writes
the examples that it saw to `--result_dir`, for example to `worker-0.npz`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tfdist  # isort: skip
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdist.estimator

tfdist.estimator.define_flags()
flags.DEFINE_integer("examples", 48, "Training examples.")
flags.DEFINE_integer("eval_examples", 11, "Evaluation examples.")
flags.DEFINE_integer("batch_size", 4, "Examples per replica batch.")
flags.DEFINE_integer("max_steps", 24, "Global steps.")
flags.DEFINE_integer("save_steps", 10, "Global steps between two checkpoints.")
flags.DEFINE_bool("repeat", True, "Whether the training input repeats forever.")
flags.DEFINE_bool("sharded", True, "Whether the training input returns only its shard.")
flags.DEFINE_bool("wrapped", True, "Whether the model function calls job.wrap_optimizer.")
flags.DEFINE_bool("keras", False, "Whether to make the Estimator from a Keras model.")
flags.DEFINE_float("step_seconds", 0.0, "Minimum duration of a step.")
flags.DEFINE_integer("slow_worker", -1, "The index of the task whose steps take ten times as long.")
flags.DEFINE_float(
    "start_seconds", 0.0, "How long after the first checkpoint the slow worker starts."
)
flags.DEFINE_float("build_seconds", 0.0, "How long the slow worker takes to build its model.")
flags.DEFINE_bool("known_size", True, "Whether the training input knows its cardinality.")
flags.DEFINE_bool("rounds", False, "Call `train` and `evaluate` twice.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_string("result_dir", None, "Directory for each task's results.", required=True)
FLAGS = flags.FLAGS


def examples(count: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(count)
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)


def batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def make(indices: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        index = tf.cast(indices, tf.float32)[:, tf.newaxis]
        x = tf.sin(index * tf.constant([[0.7, 1.3, 2.1, 3.7]]))
        return {"x": x, "index": indices}, tf.reduce_sum(x * x, axis=1, keepdims=True)

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.batch(FLAGS.batch_size).map(make).with_options(options)


def train_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = examples(FLAGS.examples, input_context)
    if not FLAGS.known_size:
        dataset = dataset.filter(lambda _: True)
    return batches(dataset.repeat() if FLAGS.repeat else dataset)


def unsharded_input() -> tf.data.Dataset:
    return train_input(tf.distribute.InputContext())


def eval_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    return batches(examples(FLAGS.eval_examples, input_context))


class Record(tf.compat.v1.train.SessionRunHook):
    """Records the examples that this task saw, and how often the cluster used each example."""

    def __init__(self, job: tfdist.Job, index: tf.Tensor, counts: tf.Variable) -> None:
        self._job, self._index, self._counts = job, index, counts
        self._seen: list[np.ndarray] = []
        self._times: list[float] = []

    def before_run(self, run_context: Any) -> Any:
        step = tf.compat.v1.train.get_global_step()
        return tf.compat.v1.train.SessionRunArgs({"index": self._index, "step": step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._seen.append(run_values.results["index"])
        self._times.append(time.time())
        is_slow = self._job.input_context.input_pipeline_id == FLAGS.slow_worker
        time.sleep(FLAGS.step_seconds * (10 if is_slow else 1))

    def end(self, session: Any) -> None:
        Path(FLAGS.result_dir).mkdir(exist_ok=True)
        task = self._job.task
        np.savez(
            Path(FLAGS.result_dir) / f"{task.type}-{task.index}.npz",
            seen=np.concatenate([np.zeros(0, np.int64), *self._seen]),
            times=np.array(self._times),
            counts=session.run(self._counts),
        )


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, config: tfdist.estimator.RunConfig
) -> tf.estimator.EstimatorSpec:
    random = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> tf.Variable:
        initial = random.normal(0, 0.5, shape).astype(np.float32)
        return tf.compat.v1.get_variable(name, initializer=initial)

    hidden = tf.tanh(features["x"] @ weights("hidden", 4, 8))
    predictions = {"y": hidden @ weights("output", 8, 1)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.reduce_mean(tf.square(labels - predictions["y"]))
    if mode == tf.estimator.ModeKeys.EVAL:
        seen = tf.compat.v1.metrics.mean(tf.ones_like(labels))
        count = tf.compat.v1.metrics.true_positives(tf.ones_like(labels), tf.ones_like(labels))
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"mean": seen, "seen": count}
        )
    if config.job.input_context.input_pipeline_id == FLAGS.slow_worker:
        time.sleep(FLAGS.build_seconds)
    counts = tf.compat.v1.get_variable(
        "counts",
        [FLAGS.examples],
        initializer=tf.compat.v1.zeros_initializer(),
        trainable=False,
        aggregation=tf.VariableAggregation.SUM,
        synchronization=tf.VariableSynchronization.ON_READ,
        use_resource=True,
    )
    optimizer: Any = tf.compat.v1.train.MomentumOptimizer(0.02, 0.9)
    if FLAGS.wrapped:
        optimizer = config.job.wrap_optimizer(optimizer)
    counted = tf.reduce_sum(tf.one_hot(features["index"], FLAGS.examples), axis=0)
    with tf.control_dependencies([counts.assign_add(counted)]):
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    hooks = []
    if not tf.distribute.has_strategy():
        hooks.append(Record(config.job, features["index"], counts))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)


def keras_estimator(job: tfdist.Job, config: tfdist.estimator.RunConfig) -> tf.estimator.Estimator:
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input([4], name="x")
    hidden = tf.keras.layers.Dense(8, activation="tanh")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    optimizer = tf.keras.optimizers.SGD(0.02, momentum=0.9)
    model.compile(optimizer=job.wrap_optimizer(optimizer), loss="mse")
    return tf.keras.estimator.model_to_estimator(model, config=config)


def main(_: list[str]) -> None:
    job = tfdist.estimator.init()
    if (
        FLAGS.start_seconds
        and job.input_context.input_pipeline_id == FLAGS.slow_worker
        and not job.evaluates
    ):
        while not tf.train.latest_checkpoint(FLAGS.output_dir):
            time.sleep(0.1)
        time.sleep(FLAGS.start_seconds)
    config = tfdist.estimator.RunConfig(
        job, FLAGS.output_dir, save_checkpoints_steps=FLAGS.save_steps, tf_random_seed=1
    )
    estimator = (
        keras_estimator(job, config)
        if FLAGS.keras
        else tf.estimator.Estimator(model_fn, config=config)
    )
    speed = tfdist.estimator.ExamplesPerSecondHook(
        job.global_batch_size(FLAGS.batch_size), every_n_steps=10
    )
    train_spec = tf.estimator.TrainSpec(
        train_input if FLAGS.sharded else unsharded_input, FLAGS.max_steps, hooks=[speed]
    )
    eval_spec = tf.estimator.EvalSpec(eval_input, steps=None, start_delay_secs=0, throttle_secs=0)
    if FLAGS.rounds:
        for steps in (FLAGS.max_steps // 2, FLAGS.max_steps):
            tfdist.estimator.train(estimator, train_spec.input_fn, max_steps=steps, hooks=[speed])
            metrics = tfdist.estimator.evaluate(estimator, eval_input)
    else:
        metrics = tfdist.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    if metrics is not None:
        print(f"final {sorted(metrics)} at {metrics['global_step']}")


if __name__ == "__main__":
    app.run(tfdist.exit_on_usage_error()(main), flags_parser=tfdist.parse_flags)
