#!/usr/bin/env python
"""Measures the tables of many features on parameter servers, in layers of several kinds.

    scripts/benchmarks/measure_features.py
    scripts/benchmarks/measure_features.py --rounds=3 --only="one Embedding,DynamicEmbedding"

The jobs take turns. `by hand` is a Keras `Embedding` for each feature under TensorFlow's
ParameterServerStrategy, which needs TensorFlow 2.15.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("features_training.py"))
WAYS = {
    "by hand": ("--by_hand", "--layer=each"),
    "a layer each": ("--layer=each",),
    "FeatureEmbeddings": ("--layer=features",),
    "one Embedding": ("--layer=table",),
    "DynamicEmbedding": ("--layer=dynamic",),
}


def speeds(own: tuple[str, ...], arguments: argparse.Namespace) -> list[float]:
    """The steps per second of all workers, for each epoch but the first."""
    with tempfile.TemporaryDirectory(prefix="tfdist-features-") as directory:
        command = [sys.executable, "-m", "tfdist", "run", "--strategy=parameter_server", "--chief"]
        command += [f"--workers={arguments.workers}", f"--ps={arguments.ps}", PROGRAM, *own]
        command += [f"--output_dir={directory}"]
        for name in ("features", "batch_size", "rows", "width", "steps"):
            command.append(f"--{name}={getattr(arguments, name)}")
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
    found = [float(each) for each in re.findall(r"speed ([\d.]+)", done.stdout)]
    if done.returncode or len(found) < 2:
        raise SystemExit(f"{command} failed:\n{done.stdout}\n{done.stderr}")
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (
        ("rounds", 2),
        ("features", 26),
        ("batch_size", 512),
        ("rows", 10_000),
        ("width", 16),
        ("steps", 200),
        ("workers", 2),
        ("ps", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", help="ways to measure, with commas between them")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else WAYS
    ways = {name: WAYS[name] for name in only}
    if not hasattr(tf.keras.utils, "experimental"):
        ways.pop("by hand", None)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way, own in ways.items():
            found[way] += speeds(own, arguments)
    first = next(iter(ways))
    print(f"| way | steps/s | ids/s | of {first} |\n| --- | --- | --- | --- |")
    for way, values in found.items():
        median = statistics.median(values)
        ids = median * arguments.features * arguments.batch_size
        ratio = median / statistics.median(found[first])
        print(f"| {way} | {median:.1f} | {ids:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
