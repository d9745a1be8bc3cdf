#!/usr/bin/env python
"""Compares tfdist's input on one core with a per-image pipeline and with the training step.

scripts/benchmarks/measure_input.py  # noise images, as many as CIFAR-10's training split
scripts/benchmarks/measure_input.py --data_dir=data  # the images in a directory of TFRecords

Measures three rates in images/s, in turn in one process on one core: `tfdist.data.cifar10` with
shuffling, random crops and flips; the same with a `map` over single images, as in TensorFlow's
tutorials; and the model's training step on a batch in memory. Leaves out the first epoch, which
reads the file: after it both pipelines have the records in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
# Before importing TensorFlow, which starts a thread for each available core.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import tfdist  # noqa: E402  isort: skip

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from estimators.resnet import cifar_resnet  # noqa: E402
from tfdist.data import cifar10, records, sources  # noqa: E402

NAMES = ("tfdist", "map over single images", "training")
# The steps of one call of `fit`.
MODEL_STEPS = 10
#: A function that runs the given number of steps.
Steps = Callable[[int], object]


def main() -> None:
    arguments = parse()
    job = tfdist.init()
    with tempfile.TemporaryDirectory(prefix="tfdist-input-") as directory:
        data_dir = Path(arguments.data_dir or directory)
        if not arguments.data_dir:
            write_noise(data_dir, arguments.images)
        images = cifar10.num_examples(data_dir, "train")
        print(f"one core, {images} images, ResNet-{arguments.num_layers}", flush=True)
        lines = [
            f"batch | {' | '.join(f'{name}, images/s' for name in NAMES)} | tfdist / map | "
            "tfdist / training",
            " | ".join(["---"] * (len(NAMES) + 3)),
        ]
        for batch_size in arguments.batch_sizes:
            rates = measure(job, data_dir, batch_size, arguments)
            medians = [statistics.median(found) for found in rates]
            cells = [
                f"{median:.0f} ({min(found):.0f} to {max(found):.0f})"
                for median, found in zip(medians, rates, strict=True)
            ]
            ratios = [f"{medians[0] / median:.1f}" for median in medians[1:]]
            lines.append(" | ".join([str(batch_size), *cells, *ratios]))
    print("\n".join(lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", help="directory of TFRecords; default: noise")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[64, 128], metavar="N")
    parser.add_argument("--images", type=int, default=40_000, help="number of noise images")
    parser.add_argument("--num_layers", type=int, default=20, help="layers of the ResNet")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a measurement")
    return parser.parse_args()


def write_noise(directory: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, [count, *sources.IMAGE_SHAPE], np.uint8)
    split = sources.Split(pixels, generator.integers(0, sources.NUM_CLASSES, [count]))
    records.write(directory, "noise", cifar10.serialized({"train": split}))


def measure(
    job: tfdist.Job, data_dir: Path, batch_size: int, arguments: argparse.Namespace
) -> tuple[list[float], ...]:
    """The images/s of each round, for each of `NAMES`."""
    images = cifar10.num_examples(data_dir, "train")
    epoch = -(-images // batch_size)
    batched = cifar10.dataset(
        data_dir, "train", batch_size=batch_size, shuffle=True, distort=True, flip=True, repeat=True
    )
    ways: list[tuple[Steps, int]] = [
        (reading(batched), epoch),
        (reading(by_image(data_dir, images, batch_size)), epoch),
        (training(job, arguments.num_layers, batch_size), MODEL_STEPS),
    ]
    rates: tuple[list[float], ...] = ([], [], [])
    for step, steps in ways:
        step(steps)
    for _ in range(arguments.rounds):
        for found, (step, steps) in zip(rates, ways, strict=True):
            found.append(batch_size * rate(step, steps, arguments.seconds))
    return rates


def rate(step: Steps, steps: int, seconds: float) -> float:
    """Steps per second, measured for at least `seconds`."""
    done, begin = 0, time.perf_counter()
    while not done or time.perf_counter() - begin < seconds:
        step(steps)
        done += steps
    return done / (time.perf_counter() - begin)


def by_image(data_dir: Path, images: int, batch_size: int) -> tf.data.Dataset:
    """The same training data, preprocessed one image at a time, as in TensorFlow's tutorials."""

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(
            serialized,
            {
                "image": tf.io.FixedLenFeature([], tf.string),
                "label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        planes = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), sources.IMAGE_SHAPE)
        image = tf.cast(tf.transpose(planes, [1, 2, 0]), tf.float32)
        return image, tf.cast(features["label"], tf.int32)

    def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.resize_with_crop_or_pad(image, 40, 40)
        image = tf.image.random_crop(image, [32, 32, 3])
        return tf.image.random_flip_left_right(image), label

    paths = sorted(str(path) for path in data_dir.glob("train*.tfrecords"))
    dataset = tf.data.TFRecordDataset(paths).cache().shuffle(images).repeat()
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def reading(dataset: tf.data.Dataset) -> Steps:
    iterator = iter(dataset)

    @tf.function
    def read(steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            next(iterator)

    return lambda steps: read(tf.constant(steps))


def training(job: tfdist.Job, num_layers: int, batch_size: int) -> Steps:
    generator = np.random.default_rng(0)
    pixels = generator.uniform(0, 255, [batch_size, 32, 32, 3]).astype(np.float32)
    labels = generator.integers(0, 10, [batch_size], np.int32)
    # With autotuning, `fit` may return late, by as much as its own duration.
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = tf.data.Dataset.from_tensors((pixels, labels)).repeat().with_options(options)
    with job.scope():
        model = cifar_resnet(num_layers)
        model.compile(
            optimizer=job.wrap_optimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9)),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    data = job.dataset(lambda context: batches)
    return lambda steps: model.fit(data, steps_per_epoch=steps, verbose=0)


if __name__ == "__main__":
    main()
