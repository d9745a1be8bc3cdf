"""Joins the batches of the replicas for one client, and splits a batch into parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def joined(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """A dataset whose batches are those of all replicas, one after the other.

    Args:
      dataset: batches of the per-replica size.
      replicas: the number of batches to join; the last element may have fewer.
    """
    if replicas == 1:
        return dataset

    is_tuple = type(dataset.element_spec) is tuple  # `map` passes the parts of a tuple.

    def join(*components: Any) -> Any:
        windows = tf.data.Dataset.zip(components if is_tuple else components[0])
        first = windows.take(1).get_single_element()
        return windows.skip(1).reduce(first, _concatenate)

    return dataset.window(replicas).map(join)


def _concatenate(*elements: Any) -> Any:
    return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, axis=0), *elements)


class Parts:
    """The parts of a batch, in order; the sizes of two parts differ by at most one example.

    Each part has an example, since layers such as batch normalization compute no valid result
    without one: if the batch has too few, its last example is repeated. The repeated examples have
    no result and no gradient.

    Args:
      tensors: the tensors of a batch; their first dimensions are equal.
      count: the number of parts.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], count: int) -> None:
        self._count = count
        self._static = tensors[0].shape[0]
        self._size = self._static if self._static is not None else tf.shape(tensors[0])[0]
        self._repeated = tf.maximum(count - self._size, 0)
        total = self._size + self._repeated
        self._sizes = (total + count - 1 - tf.range(count)) // count

    def split(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor of the batch."""
        return self._split(tensor, tensor[-1:])

    def split_gradient(self, gradient: tf.Tensor) -> list[tf.Tensor]:
        """Splits the gradient of a merged tensor."""
        return self._split(gradient, tf.zeros_like(gradient[-1:]))

    def merge(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Merges the results of all parts."""
        merged = tf.concat(parts, axis=0)
        return merged if self._is_even else merged[: self._size]

    def _split(self, tensor: tf.Tensor, further: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor, which gets further examples if the batch has too few."""
        if self._is_even:
            return list(tf.split(tensor, self._count))
        whole = tf.concat([tensor, tf.repeat(further, self._repeated, axis=0)], axis=0)
        return list(tf.split(whole, self._sizes, num=self._count))

    @property
    def _is_even(self) -> bool:
        return self._static is not None and self._static % self._count == 0
