"""Gives all tasks the same global seed while they create a dataset, and restores the old one.

    with default():
        dataset = train_input()     # `shuffle` without a seed has the same order in all tasks

`tf.random.set_seed` has no counterpart that returns the seed and the state of its generator, from
which TensorFlow takes the seeds of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.python.eager import context

_SEED = 0


@contextmanager
def default() -> Iterator[None]:
    """Uses the user's global seed from its beginning; without one, the same seed in all tasks."""
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        before = graph.seed
        graph.seed = _SEED if before is None else before
        try:
            yield
        finally:
            graph.seed = before
        return
    eager = context.context()
    # Before the first `set_seed` there may be no generator.
    state = {name: vars(eager)[name] for name in ("_seed", "_rng") if name in vars(eager)}
    seed = state.get("_seed")
    tf.random.set_seed(_SEED if seed is None else seed)
    try:
        yield
    finally:
        vars(eager).update(state)
