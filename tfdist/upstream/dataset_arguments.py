"""Replaces arguments of `tf.data.Dataset`'s methods in a function of the user.

    with dataset_arguments.replaced(deterministic=lambda _: None):
        dataset = train_input()

`deterministic=False` of a method wins over the options of the dataset, and several tasks cannot
write the cache file of one name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import all_replaced

_METHODS = ("batch", "cache", "interleave", "map")


def replaced(**replacements: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """In this block, each argument with one of these names is replaced by its function's result."""

    def replacing(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        # AutoGraph takes it for a function of TensorFlow, and converts the functions it is given.
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name in replacements.keys() & given.keys():
                given[name] = replacements[name](given[name])
            return method(**given)

        return call

    kind = tf.data.Dataset
    return all_replaced((kind, name, replacing(getattr(kind, name))) for name in _METHODS)
