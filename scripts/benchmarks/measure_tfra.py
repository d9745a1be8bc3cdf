#!/usr/bin/env python
"""Measures `DynamicEmbedding` beside the one of TensorFlow Recommenders Addons (TFRA), on CPUs.

    python3.11 -m venv tfra
    tfra/bin/pip install tensorflow-recommenders-addons==0.8.1 tensorflow==2.16.2 tf_keras==2.16.0
    scripts/benchmarks/measure_tfra.py --tfra_python=tfra/bin/python

Each layer trains the same model in a process of its own, and they take turns. The ids are `fixed`,
uniform ones that all have rows before the first round; or `drifting`, Zipf's, where those of a step
begin `--drift` later than those of the step before. Between the rounds, `evict` frees rows, and
`restrict` those of TFRA with a policy; `freeing, s` has the longest time of each. The speeds are
medians; the ratio to tfdist has the least and the greatest, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CASES, LAYERS = ("fixed", "drifting"), ("tfdist", "TFRA", "TFRA, a policy")
HEADER = ("ids", "layer", "TensorFlow", "steps/s", "ids/s", "to tfdist", "rows", "freeing, s")
INTEGERS = {"rounds": 9, "steps": 100, "batch_size": 512, "features": 26, "ids": 260_000}


def ids_of(options: argparse.Namespace, case: str, number: int) -> np.ndarray:
    """The ids of a round, by step, example and feature. Round 0 is the warm-up."""
    random, rows = np.random.default_rng(number), options.ids // options.features
    shape = [options.steps, options.batch_size, options.features]
    if case == "drifting":
        first = options.drift * (number * options.steps + np.arange(options.steps))
        found = random.zipf(1.2, shape) % rows + first[:, np.newaxis, np.newaxis]
    elif number:
        found = random.integers(0, rows, shape)
    else:
        every = np.arange(options.steps * options.batch_size) % rows
        found = np.broadcast_to(every.reshape([*shape[:2], 1]), shape)
    return found + (np.arange(options.features) << 40)  # Each feature has ids of its own.


def table_of(layer: str, options: argparse.Namespace) -> tuple[Any, Any, Callable[[], int]]:
    """A layer, its optimizer, and what frees rows and returns the number of the others."""
    width, size = options.width, options.ids
    if layer == "tfdist":
        from tfdist.compat import keras
        from tfdist.layers import DynamicEmbedding, row_index

        import tensorflow as tf  # isort: skip  (after tfdist)

        if keras.is_keras_3(tf.keras.Model):
            from tfdist.upstream import keras3_repeated_rows, keras3_sparse_adagrad

            # As in a job.
            keras3_repeated_rows.apply()
            keras3_sparse_adagrad.apply()
        table = DynamicEmbedding(width, size)
        adagrad = tf.keras.optimizers.Adagrad(0.05)

        def free() -> int:
            table.evict([adagrad])
            return int(np.sum(np.asarray(table.ids) != row_index.FREE))

        return table, adagrad, free
    import tensorflow as tf
    from tensorflow_recommenders_addons import dynamic_embedding as tfra

    policy = tfra.TimestampRestrictPolicy if layer == LAYERS[-1] else None
    table = tfra.keras.layers.Embedding(width, init_capacity=size, restrict_policy=policy)

    def restrict() -> int:
        if policy is not None:
            table.params.restrict(int(0.9 * size), trigger=size)
        return int(table.params.size())

    optimizer = tfra.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adagrad(0.05))
    return table, optimizer, restrict


def train(layer: str, case: str, options: argparse.Namespace) -> None:
    """Trains a round for each line of the standard input, and prints what was seen."""
    table, optimizer, free = table_of(layer, options)
    import tensorflow as tf

    ids = tf.keras.Input([options.features], dtype="int64")
    rows = tf.keras.layers.Reshape([options.features * options.width])(table(ids))
    hidden = tf.keras.layers.Dense(64, "relu")(rows)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse")
    # With autotuning, the end of the data may wait as long as the round has taken.
    settings = tf.data.Options()
    settings.autotune.enabled = False
    for number in range(options.rounds + 1):
        sys.stdin.readline()
        batches = ids_of(options, case, number)
        labels = np.random.default_rng(number).normal(size=[*batches.shape[:2], 1])
        data = tf.data.Dataset.from_tensor_slices((batches, labels.astype("float32")))
        data, begun = data.prefetch(2).with_options(settings), time.perf_counter()
        model.fit(data, verbose=0)
        trained = time.perf_counter()
        found = [trained - begun, free(), time.perf_counter() - trained, tf.__version__]
        print(f"\n{json.dumps(found)}", flush=True)


def measure(case: str, options: argparse.Namespace) -> None:
    """Prints the rows of a kind of ids."""
    root, running = str(Path(__file__).parents[2]), dict[str, Any]()
    found: dict[str, list[Any]] = {layer: [] for layer in LAYERS}
    for layer in LAYERS:
        python, environ = sys.executable, {**os.environ, "PYTHONPATH": root}
        if layer != "tfdist":
            python, environ["TF_USE_LEGACY_KERAS"] = options.tfra_python, "1"
        command = [python, __file__, *sys.argv[1:], f"--layer={layer}", f"--cases={case}"]
        running[layer] = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    for _ in range(options.rounds + 1):
        for layer, process in running.items():
            print(file=process.stdin, flush=True)
            found[layer].append(json.loads(next(x for x in process.stdout if x.startswith("["))))
    own = [each[0] for each in found["tfdist"][1:]]
    for layer, seen in found.items():
        seconds, rows, freeing, version = zip(*seen[1:], strict=True)
        ratios = sorted(one / other for one, other in zip(own, seconds, strict=True))
        speed = options.steps / statistics.median(seconds)
        ids = speed * options.batch_size * options.features
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {case} | {layer} | {version[0]} | {speed:.1f} | {ids:,.0f} | {ratio}", end="")
        print(f" | {rows[-1]:,} | {max(freeing):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tfra_python", required=True, help="a Python that has TFRA")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--layer", choices=LAYERS, help=argparse.SUPPRESS)
    for name, default in {**INTEGERS, "width": 16, "drift": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.layer:
        return train(options.layer, options.cases[0], options)
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for case in options.cases:
        measure(case, options)


if __name__ == "__main__":
    main()
