"""A custom loop with Horovod, which reads its own variables."""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
# A file given as the argument: this rank fails until there is one.
if sys.argv[1:] and not (failed := Path(sys.argv[1])).exists():
    failed.touch()
    sys.exit(3)
weight = tf.Variable(float(hvd.rank()))
hvd.broadcast_variables([weight], root_rank=0)
for _ in range(20):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = (weight - 3.0) ** 2
    weight.assign_sub(0.1 * tape.gradient(loss, [weight])[0])
print(f"rank {hvd.rank()} of {hvd.size()} has trained to a loss of {float(loss):.2f}")
