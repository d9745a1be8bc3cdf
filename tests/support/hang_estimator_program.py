"""Trains an Estimator, and hangs (or stops) after some steps in a hook of one task."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import tfdist.estimator  # isort: skip

import tensorflow as tf
from absl import flags

SHARD = flags.DEFINE_integer("shard", 1, "The shard whose task hangs.")
STOP = flags.DEFINE_bool("stop", False, "That task is stopped; the others train after that.")
STEPS = flags.DEFINE_integer("steps", 1_000_000, "Global steps.")
OUTPUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)


class Hang(tf.compat.v1.train.SessionRunHook):
    steps = 0

    def after_run(self, context: Any, values: Any) -> None:
        self.steps += 1
        if self.steps == 5:
            if STOP.value:
                (Path(OUTPUT.value) / "stopped").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            sleep_in_hook()


class WaitForStop(tf.compat.v1.train.SessionRunHook):
    def after_run(self, context: Any, values: Any) -> None:
        while not (Path(OUTPUT.value) / "stopped").exists():
            time.sleep(0.1)


def sleep_in_hook() -> None:
    time.sleep(1000)


def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    data = tf.data.Dataset.range(64).repeat().map(lambda n: tf.cast([n], tf.float32) / 64.0)
    return data.map(lambda x: (x, x)).batch(4)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tf.estimator.EstimatorSpec:
    predictions = tf.compat.v1.layers.dense(features, 1)
    loss = tf.reduce_mean(tf.square(predictions - labels))
    optimizer = params["job"].wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
    step = tf.compat.v1.train.get_global_step()
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step)
    )


@tfdist.estimator.main
def main(job: tfdist.estimator.EstimatorJob) -> None:
    config = tfdist.estimator.RunConfig(job, model_dir=OUTPUT.value)
    estimator = tf.estimator.Estimator(model_fn, config=config, params={"job": job})
    hooks: list[tf.compat.v1.train.SessionRunHook] = []
    if job.topology.shard == SHARD.value:
        hooks = [Hang()]
    elif STOP.value:
        hooks = [WaitForStop()]
    tfdist.estimator.train(estimator, input_fn, max_steps=STEPS.value, hooks=hooks)


if __name__ == "__main__":
    tfdist.estimator.run(main)
