#!/usr/bin/env python
"""Measures tables for a stream whose ids come and go: how well they predict, and their memory.

    scripts/benchmarks/measure_dynamic.py                     # both tables; 4 minutes on two cores
    scripts/benchmarks/measure_dynamic.py --free 0.05 0.1 0.3 0.5 --seeds=1 --hours=0
    scripts/benchmarks/measure_dynamic.py --seeds=0 --ids_per_second=5000

The stream is that of examples/click_stream.py, and so is the model. All ways train it in one
process, in the same order, from the same seed:

- static: a row for every id of the stream, which only this benchmark can know in advance;
- dynamic: a `DynamicEmbedding` with rows for `--share` of the ids, which evicts at each "save",
  after `--save_steps` steps;
- hashed: the id modulo the number of rows, which are as many bytes as the largest dynamic table.

The bytes are those of both tables, of what Adagrad knows of them, and of the index of ids. The AUC
is progressive, each click is predicted once, before it is trained; the mean of the parts between
two saves, without the first quarter of the stream, in which the tables are not full yet.

The second table has the resident memory of processes that train with new ids alone, as many as come
in an hour. It begins when the dynamic tables are full. The memory of the hashed table, which does
not grow, tells what TensorFlow and Keras add in each step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import tfdist  # isort: skip  # noqa: F401  (before TensorFlow, whose messages it hides)

import numpy as np
import tensorflow as tf

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.click_stream import clicks, factorization_machine  # noqa: E402
from tfdist.layers import DynamicEmbedding  # noqa: E402
from tfdist.layers.row_index import ADMITTED, EVICTED, REFUSED  # noqa: E402

NAMES = ("user", "item")
LEARNING_RATE = 0.5
# Of an id in a `MutableHashTable`, measured with 2,000,000 ids, and in the stack of free rows.
INDEX_BYTES = 44 + 8
MOMENTS = 6  # in an hour


@dataclass(frozen=True)
class Way:
    """A way to give ids a row.

    Attributes:
      name: its name.
      rows: the rows of both tables together.
      bytes: their bytes.
      table: returns the layer for users or for items.
      places: changes the ids of users or of items to what the layer takes.
    """

    name: str
    rows: int
    bytes: int
    table: Callable[[str], Any]
    places: Callable[[str, np.ndarray], np.ndarray] = lambda _, ids: ids


@dataclass(frozen=True)
class Result:
    """What a way did with a stream.

    Attributes:
      auc: the mean AUC.
      seconds: the time of the training and of the evictions.
      refused: how often a click found no free row in one of the tables, of all clicks.
    """

    auc: float
    seconds: float
    refused: float


def stream(arguments: argparse.Namespace, seed: int) -> dict[str, np.ndarray]:
    """All clicks: `user`, `item` and `label`."""
    one = tf.function(
        partial(clicks, size=arguments.batch_size, half_life=arguments.half_life, seed=seed)
    )
    batches = [one(tf.constant(number, tf.int64)) for number in range(arguments.steps)]
    return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}


def ways(arguments: argparse.Namespace, data: dict[str, np.ndarray]) -> Iterator[Way]:
    width = arguments.width
    of_row = 2 * 4 * width  # The row and its sum of squares.
    known = {name: np.unique(data[name]) for name in NAMES}
    sizes = {name: len(each) for name, each in known.items()}
    count = sum(sizes.values())

    def static(name: str) -> Any:
        return tf.keras.layers.Embedding(sizes[name], width)

    yield Way(
        "static",
        count,
        count * of_row,
        static,
        lambda name, ids: np.searchsorted(known[name], ids),
    )
    capacities = {name: int(arguments.share * size) for name, size in sizes.items()}
    capacity, most = sum(capacities.values()), 0

    for policy, admit_after, free in product(
        arguments.policies, arguments.admit_after, arguments.free
    ):
        # Of each row: its id, when it was met, how often; and two counters.
        of_id = INDEX_BYTES + 8 * (2 + (policy == "frequency") + 2 * (admit_after > 1))

        def dynamic(name: str, **options: Any) -> Any:
            return DynamicEmbedding(width, capacities[name], **options)

        options = {"eviction_policy": policy, "admit_after": admit_after, "free": free}
        size = capacity * (of_row + of_id)
        most = max(most, size)
        name = f"dynamic, {policy}, admit_after={admit_after}, free={free:g}"
        yield Way(name, capacity, size, partial(dynamic, **options))

    # Odd, so that the hidden vectors, which are bits of the ids, do not show.
    rows = most // of_row // 2 | 1
    yield Way(
        "hashed",
        2 * rows,
        2 * rows * of_row,
        lambda _: tf.keras.layers.Embedding(rows, width),
        lambda _, ids: ids % rows,
    )


def train(way: Way, data: dict[str, np.ndarray], arguments: argparse.Namespace) -> Result:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    tables = [way.table(name) for name in NAMES]
    model, optimizer = compiled(tables)
    inputs = {name: way.places(name, data[name]) for name in NAMES}
    size = arguments.batch_size * arguments.save_steps
    found, begun = [], tf.timestamp()
    for begin in range(0, len(data["label"]), size):
        part = slice(begin, begin + size)
        history = model.fit(
            {name: inputs[name][part] for name in NAMES},
            data["label"][part],
            arguments.batch_size,
            shuffle=False,
            verbose=0,
        )
        found.append(history.history["auc"][0])
        save(tables, optimizer)
    seconds = float(tf.timestamp() - begun)
    refused = sum(total(table, REFUSED) for table in tables if isinstance(table, DynamicEmbedding))
    return Result(statistics.mean(found[len(found) // 4 :]), seconds, refused / len(data["label"]))


def compiled(tables: list[Any]) -> tuple[tf.keras.Model, Any]:
    """The model of the example, and its optimizer."""
    model, optimizer = factorization_machine(*tables), tf.keras.optimizers.Adagrad(LEARNING_RATE)
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    auc = tf.keras.metrics.AUC(1000, from_logits=True, name="auc")
    model.compile(optimizer, loss, metrics=[auc])
    return model, optimizer


def save(tables: list[Any], optimizer: Any) -> None:
    """What `job.fit` does with the tables before it saves."""
    for table in tables:
        if isinstance(table, DynamicEmbedding):
            table.evict([optimizer])


def total(table: DynamicEmbedding, place: int) -> int:
    """One of the totals of a table."""
    return int(np.array(table.totals)[place])


def measure_streams(arguments: argparse.Namespace) -> None:
    found: dict[str, list[Result]] = {}
    sizes: dict[str, Way] = {}
    for seed in range(arguments.seeds):
        data = stream(arguments, seed)
        for way in ways(arguments, data):
            found.setdefault(way.name, []).append(train(way, data, arguments))
            sizes.setdefault(way.name, way)
    header = ("table", "rows", "MB", "AUC", "to static", "least", "greatest", "refused", "steps/s")
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}", flush=True)
    for name, results in found.items():
        pairs = zip(results, found["static"], strict=True)
        changes = [own.auc - static.auc for own, static in pairs]
        cells = (
            name,
            f"{sizes[name].rows:,}",
            f"{sizes[name].bytes / 1e6:.1f}",
            f"{statistics.mean(each.auc for each in results):.4f}",
            *(f"{each:+.4f}" for each in (statistics.mean(changes), min(changes), max(changes))),
            f"{statistics.mean(each.refused for each in results):.3f}",
            f"{arguments.steps / statistics.mean(each.seconds for each in results):.0f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


class Moments(tf.keras.callbacks.Callback):
    """Evicts after each `save_steps`, and prints the resident memory at some moments.

    Args:
      tables: the tables.
      save_steps: the steps between two evictions.
      steps: the steps between two moments.
      first: the steps before the first one.
    """

    def __init__(self, tables: list[Any], save_steps: int, steps: int, first: int) -> None:
        super().__init__()
        self._tables, self._save_steps, self._steps, self._first = tables, save_steps, steps, first

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = batch + 1
        if done % self._save_steps == 0:
            save(self._tables, self.model.optimizer)
        if done >= self._first and (done - self._first) % self._steps == 0:
            self._print((done - self._first) // self._steps)

    def _print(self, moment: int) -> None:
        table = self._tables[0]
        is_dynamic = isinstance(table, DynamicEmbedding)
        cells = (
            "dynamic" if is_dynamic else "hashed",
            str(60 // MOMENTS * moment),
            *(f"{total(table, place):,}" if is_dynamic else "" for place in (ADMITTED, EVICTED)),
            f"{resident_megabytes():.1f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def measure_memory(arguments: argparse.Namespace, is_dynamic: bool) -> None:
    """Trains with new ids alone, and prints the resident memory."""
    free, capacity, size = max(arguments.free), arguments.capacity, arguments.batch_size
    tables: list[Any] = [
        DynamicEmbedding(arguments.width, capacity, free=free)
        if is_dynamic
        else tf.keras.layers.Embedding(capacity, arguments.width)
        for _ in NAMES
    ]
    numbers = tf.data.Dataset.range(tf.int64.max).batch(size, drop_remainder=True)
    # Each number once, over all of int64.
    ids = numbers.map(lambda each: each * 0x1E3779B97F4A7C15)
    if not is_dynamic:
        ids = ids.map(lambda each: each % (capacity // 2))
    label = tf.zeros([size])
    batches = ids.map(lambda each: ({"user": each, "item": each + 1}, label)).prefetch(2)
    # As many new ids between two evictions as one frees.
    save_steps = int(free * capacity) // size
    moment = 3600 // MOMENTS * arguments.ids_per_second // size
    first = 2 * capacity // size
    compiled(tables)[0].fit(
        batches,
        steps_per_epoch=first + int(arguments.hours * MOMENTS) * moment,
        callbacks=[Moments(tables, save_steps, moment, first)],
        verbose=0,
    )


def resident_megabytes() -> float:
    """The resident memory of this process (`proc(5)`, status)."""
    found = re.search(r"^VmRSS:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError("/proc/self/status: received no VmRSS; accepted: that of Linux")
    return 1.024e-3 * int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (
        ("seeds", 3),
        ("steps", 4_000),
        ("save_steps", 200),
        ("batch_size", 512),
        ("width", 16),
        ("half_life", 100_000),
        ("ids_per_second", 1_000),
        ("capacity", 100_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=0.2, help="rows of the dynamic tables")
    parser.add_argument("--hours", type=float, default=1.0, help="of new ids; 0 for none")
    parser.add_argument("--policies", nargs="+", default=["age", "frequency"])
    parser.add_argument("--admit_after", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--free", nargs="+", type=float, default=[0.1, 0.3])
    arguments = parser.parse_args()
    if arguments.seeds:
        measure_streams(arguments)
    if arguments.hours:
        header = ("table", "minute", "ids admitted", "ids evicted", "resident, MB")
        print(f"\n| {' | '.join(header)} |\n|{' --- |' * len(header)}", flush=True)
        for is_dynamic in (True, False):
            process = multiprocessing.get_context("spawn").Process(
                target=measure_memory, args=(arguments, is_dynamic)
            )
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
