"""Trains a model of equal layers on constant data, for `measure_stages.py` and a test of memory.

Writes the examples/s of each epoch but the first to OUTPUT_DIR/rates.json, and the most memory of
each process to OUTPUT_DIR/memory-PID. With --memory_group,
each task enters a cgroup of its own below this one (version 1 of the memory controller).
"""

from __future__ import annotations

import tfdist  # isort: skip

import atexit
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import flags

_KIND = flags.DEFINE_enum("kind", "dense", ["dense", "conv"], "The layers.")
_LAYERS = flags.DEFINE_integer("layers", 8, "The number of layers.")
_WIDTH = flags.DEFINE_integer("width", 1024, "Units or filters of a layer.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4096, "Examples of a step, over all replicas.")
_OPTIMIZER = flags.DEFINE_enum(
    "optimizer", "sgd", ["sgd", "legacy_sgd"], "Keras 2's legacy_sgd changes the weights in place."
)
_STEPS = flags.DEFINE_integer("steps", 4, "Steps of an epoch.")
_EPOCHS = flags.DEFINE_integer("epochs", 4, "Epochs.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The output directory.", required=True)
_MEMORY_GROUP = flags.DEFINE_string("memory_group", None, "The directory of a cgroup.")
_MEMORY_LIMIT = flags.DEFINE_integer("memory_limit", 0, "With --memory_group: bytes of a task.")

_IMAGE = [32, 32, 3]
_CLASSES = 10


def build_model(job: tfdist.Job) -> tf.keras.Model:
    layers, width = tf.keras.layers, _WIDTH.value
    if _KIND.value == "dense":
        own = [layers.Dense(width, "relu") for _ in range(_LAYERS.value)]
        model = tf.keras.Sequential([tf.keras.Input([width]), *own, layers.Dense(_CLASSES)])
    else:
        own = [
            layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(_LAYERS.value)
        ]
        pooled = [layers.GlobalAveragePooling2D(), layers.Dense(_CLASSES)]
        model = tf.keras.Sequential([tf.keras.Input(_IMAGE), *own, *pooled])
    optimizers = tf.keras.optimizers
    sgd = optimizers.legacy.SGD if _OPTIMIZER.value == "legacy_sgd" else optimizers.SGD
    model.compile(sgd(0.001), "mse")
    return model


def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
    size = _BATCH_SIZE.value // context.num_replicas_in_sync
    shape = [_WIDTH.value] if _KIND.value == "dense" else _IMAGE
    batch = tf.ones([size, *shape]), tf.ones([size, _CLASSES])
    steps = _STEPS.value * context.num_replicas_in_sync // context.num_input_pipelines
    return tf.data.Dataset.from_tensors(batch).repeat(steps)


class Rates(tf.keras.callbacks.Callback):
    """Collects the examples/s of each epoch but the first, which traces the functions."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        seconds = time.perf_counter() - self._begin
        if epoch:
            self.rates.append(_STEPS.value * _BATCH_SIZE.value / seconds)


def enter_group(parent: Path, limit: int) -> None:
    """Limits the memory of this process."""
    own = parent / str(os.getpid())
    own.mkdir()
    (own / "memory.limit_in_bytes").write_text(str(limit))
    (own / "cgroup.procs").write_text(str(os.getpid()))


def write_memory() -> None:
    """Writes the most memory of this process, in KiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(_OUTPUT_DIR.value, f"memory-{os.getpid()}").write_text(str(kibibytes))


@tfdist.main
def main(job: tfdist.Job) -> None:
    if _MEMORY_GROUP.value is not None:
        enter_group(Path(_MEMORY_GROUP.value), _MEMORY_LIMIT.value)
    atexit.register(write_memory)
    rates = Rates()
    job.fit(
        build_model,
        data,
        epochs=_EPOCHS.value,
        output_dir=_OUTPUT_DIR.value,
        callbacks=[rates],
        verbose=0,
    )
    (Path(_OUTPUT_DIR.value) / "rates.json").write_text(json.dumps(rates.rates))


if __name__ == "__main__":
    tfdist.run(main)
