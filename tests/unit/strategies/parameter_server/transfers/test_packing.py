"""Packed tensors give the same results as separate ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.transfers import packing

pytestmark = pytest.mark.stacks("2.15", "newest")


def over_packs(
    operation: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Applies an elementwise operation in one call per pack."""

    results: dict[int, tf.Tensor] = {}
    for places in packing.packs_of(tensors):
        sent = [tensors[place] for place in places]
        is_alone = len(sent) == 1
        result = operation(sent[0] if is_alone else packing.pack(sent))
        found = [result] if is_alone else packing.unpack(result, sent)
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(tensors))]


def test_small_tensors_of_a_dtype_are_packed_and_large_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "_SMALL_BYTES", 16)
    monkeypatch.setattr(packing, "_PACK_BYTES", 24)
    tensors = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        tf.constant([5, 6]),
        tf.constant(7.0),
        tf.constant([8.0, 9.0, 10.0, 11.0, 12.0]),
        tf.constant([13.0, 14.0]),
        tf.constant([15.0, 16.0, 17.0, 18.0]),
        tf.zeros([0, 3]),
        tf.constant(["not a number"]),
    ]
    sent: list[list[float]] = []

    def twice(tensor: tf.Tensor) -> tf.Tensor:
        sent.append(tf.reshape(tensor, [-1]).numpy().tolist())
        return tensor + tensor

    found = over_packs(twice, tensors)

    assert sent == [
        [1.0, 2.0, 3.0, 4.0, 7.0, 13.0, 14.0],
        [5, 6],
        [8.0, 9.0, 10.0, 11.0, 12.0],
        [15.0, 16.0, 17.0, 18.0],
        [b"not a number"],
    ]
    for result, tensor in zip(found, tensors, strict=True):
        assert result.dtype == tensor.dtype
        assert (result.numpy() == (tensor + tensor).numpy()).all()


def test_a_tensor_of_unknown_size_is_not_packed() -> None:
    sent = []

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2])])
    def both(some: tf.Tensor, two: tf.Tensor) -> list[tf.Tensor]:
        def negative(tensor: tf.Tensor) -> tf.Tensor:
            sent.append(tensor.shape.rank and tensor.shape[0])
            return -tensor

        return over_packs(negative, [some, two, two])

    one_to_three = tf.constant([1.0, 2.0, 3.0])
    assert [list(tensor.numpy()) for tensor in both(one_to_three, one_to_three[:2])] == [
        [-1.0, -2.0, -3.0],
        [-1.0, -2.0],
        [-1.0, -2.0],
    ]
    assert sent == [None, 4]


def test_an_empty_list_sends_nothing() -> None:
    assert over_packs(lambda _: pytest.fail("called"), []) == []
