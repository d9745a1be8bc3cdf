"""Gives each replica its own random numbers, in the layers of Keras such as Dropout.

    apply(of_replica)           # a replica of a `tf.distribute.Strategy`
    apply(lambda: rank)         # a process that TensorFlow does not know as one of several

All processes of a job create a model with the same seeds, and Keras 3 also draws the same numbers
in all replicas of a process. The state of a generator of Keras 3 stays equal in all replicas, so
that one of them can save it, and only what is drawn with it differs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat

# Between the seeds of two replicas: larger than the seeds that Keras 3 makes from its global one.
_STEP = 1_000_003


def of_replica() -> int:
    """The number of the replica whose function is traced or runs, from 0; 0 outside of replicas."""
    context = tf.distribute.get_replica_context()
    number = 0 if context is None else context.replica_id_in_sync_group
    return int(tf.get_static_value(tf.convert_to_tensor(number)))


def apply(number: Callable[[], Any]) -> None:
    """Changes the generators of Keras; a later call only replaces the number.

    Args:
      number: returns the number of the replica that draws. Replica 0 draws as one process does.
        For Keras 2 it is an int, for Keras 3 an int or an integer tensor of shape [].
    """
    keras: Any = keras_compat.keras_of(tf.keras.Model)
    if keras_compat.is_keras_3(tf.keras.Model):
        generator, name, moved = keras.random.SeedGenerator, "next", _moved
    else:
        backend: Any = importlib.import_module(f"{keras.__name__}.src.backend")
        generator, name, moved = backend.RandomGenerator, "make_legacy_seed", _moved_of_operation
    draw = inspect.unwrap(getattr(generator, name))

    @functools.wraps(draw)
    def call(*args: Any, **options: Any) -> Any:
        seed, place = draw(*args, **options), number()
        return seed if isinstance(place, int) and place == 0 else moved(seed, place)

    setattr(generator, name, tf.autograph.experimental.do_not_convert(call))


def _moved(seed: tf.Tensor, number: Any) -> tf.Tensor:
    return seed + _STEP * tf.cast(tf.stack([number, 0]), seed.dtype)


def _moved_of_operation(seed: int | None, number: int) -> int | None:
    # Without a seed for the operation, TensorFlow takes one from the global seed, if there is one.
    _, of_operation = tf.compat.v1.get_seed(seed)
    return None if of_operation is None else int(of_operation) + _STEP * number
