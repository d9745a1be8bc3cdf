"""The training that measure_faults.py disturbs; it records the time of each update of the weights.

The chief appends lines to the file `steps` in `--directory`: the time (`time.monotonic`, the same
clock in all processes), `start` or `step`, and the number of updates so far. Each task writes its
process ID there. Worker 1 raises an exception if there is a file `fail`.
"""

import os
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import tensorflow as tf
from absl import app, flags

tfdist.define_flags()
flags.DEFINE_string("directory", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("save_steps", None, "Steps between two checkpoints.", required=True)
FLAGS = flags.FLAGS


class Steps(tf.keras.callbacks.Callback):
    """Polls the updates in a thread, because callbacks do not see steps under every strategy."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def on_train_begin(self, logs: Any = None) -> None:
        self._record("start")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with suppress(tf.errors.OpError):  # The ps with the variable was lost.
            while not self._ended.wait(0.005):
                if self.model.optimizer.iterations.numpy() != self._updates:
                    self._record("step")

    def _record(self, word: str) -> None:
        self._updates = int(self.model.optimizer.iterations.numpy())
        with Path(FLAGS.directory, "steps").open("a") as file:
            file.write(f"{time.monotonic()} {word} {self._updates}\n")


def fail(*_: Any, **__: Any) -> None:
    if Path(FLAGS.directory, "fail").exists():
        raise RuntimeError("failing, as requested")


def examples(context: tf.distribute.InputContext, count: int = 1_000_000) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(count)
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(4)
    return dataset.map(lambda index: 2 * (tf.sin(tf.cast(index, tf.float32))[:, tf.newaxis],))


def busy(inputs: tf.Tensor) -> tf.Tensor:
    """Computes for about 30 ms, and returns (almost) the inputs."""
    matrix = tf.fill([640, 640], tf.reduce_mean(inputs))
    for _ in range(3):
        matrix = tf.matmul(matrix, tf.fill([640, 640], 1 / 640))
    return inputs + 1e-9 * tf.stop_gradient(tf.reduce_mean(matrix))


def main(_: list[str]) -> None:
    job = tfdist.init()
    Path(FLAGS.directory, f"{job.task}.pid").write_text(str(os.getpid()))
    if job.serves:
        return job.serve()
    with job.scope():
        model = tf.keras.Sequential([tf.keras.layers.Lambda(busy), tf.keras.layers.Dense(1)])
        model.compile(optimizer=job.wrap_optimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    output_dir = os.path.join(FLAGS.directory, "output")
    if job.evaluates:
        job.evaluate(model, lambda context: examples(context, 8), output_dir, epochs=1)
        return
    callbacks = job.callbacks(output_dir, save_steps=FLAGS.save_steps)
    failing = tf.keras.callbacks.LambdaCallback
    with closing(Steps()) as steps:
        own = steps if job.is_chief else failing(on_train_batch_end=fail)
        model.fit(job.dataset(examples), callbacks=[*callbacks, own], verbose=0)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
