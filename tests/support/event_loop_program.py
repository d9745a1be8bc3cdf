"""Prints the milliseconds of CPU time per all-reduce of Horovod, with one core per process."""

from __future__ import annotations

import os
import time

# The rank is known before `hvd.init`, whose threads inherit the core.
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[int(os.environ["HOROVOD_RANK"]) % len(cores)]})

import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

CALLS = 150


@tf.function
def all_reduces(values: list[tf.Tensor], calls: tf.Tensor) -> list[tf.Tensor]:
    for _ in tf.range(calls):
        values = hvd.grouped_allreduce(values)
    return values


hvd.init()
values = [tf.zeros([size]) for size in (50_000, 64, 4_096, 64, 640, 10)]
all_reduces(values, tf.constant(2))
before = time.process_time()
all_reduces(values, tf.constant(CALLS))
print(f"CPU time: {1e3 * (time.process_time() - before) / CALLS:.3f} ms", flush=True)
