"""Gives all tasks the same seeds while they create a dataset, and restores the old ones.

    with default():
        dataset = train_input()     # what it shuffles without a seed has the same order everywhere

These are the seeds of Python, NumPy and TensorFlow. Keras takes its own from Python; a generator
that Keras 3 already has is put aside.

`tf.random.set_seed` has no counterpart that returns the seed and the state of its generator, from
which TensorFlow takes the seeds of operations.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

_SEED = 0
_KERAS_3_STATE = "keras.src.backend.common.global_state"
_KERAS_3_GENERATOR = "global_seed_generator"


@contextmanager
def default() -> Iterator[None]:
    """Restarts from the user's global seed; without one, uses the same seed in all tasks."""
    graph = tf.compat.v1.get_default_graph()
    in_graph = not tf.executing_eagerly()
    holder, names = (graph, ("seed",)) if in_graph else (context.context(), ("_seed", "_rng"))
    # Before the first `set_seed` there may be no generator.
    state = {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    keras_3: Any = sys.modules.get(_KERAS_3_STATE)
    generator = keras_3 and keras_3.get_global_attribute(_KERAS_3_GENERATOR)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    seed = _SEED if state[names[0]] is None else state[names[0]]
    tf.compat.v1.set_random_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if keras_3:
        keras_3.set_global_attribute(_KERAS_3_GENERATOR, None)
    try:
        yield
    finally:
        for name, value in state.items():
            setattr(holder, name, value)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if keras_3:
            keras_3.set_global_attribute(_KERAS_3_GENERATOR, generator)
