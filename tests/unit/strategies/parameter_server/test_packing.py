"""Small tensors that travel together are what they would be by themselves."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import packing


def test_the_last_of_a_dtype_go_together_and_large_ones_alone(
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

    found = packing.over_packs(twice, tensors)

    assert sent == [
        [b"not a number"],
        [15.0, 16.0, 17.0, 18.0, 13.0, 14.0],
        [8.0, 9.0, 10.0, 11.0, 12.0],
        [7.0, 1.0, 2.0, 3.0, 4.0],
        [5, 6],
    ]
    for result, tensor in zip(found, tensors, strict=True):
        assert result.dtype == tensor.dtype
        assert (result.numpy() == (tensor + tensor).numpy()).all()


def test_nothing_is_packed_of_which_the_size_is_not_known() -> None:
    sent = []

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2])])
    def both(some: tf.Tensor, two: tf.Tensor) -> list[tf.Tensor]:
        def negative(tensor: tf.Tensor) -> tf.Tensor:
            sent.append(tensor.shape.rank and tensor.shape[0])
            return -tensor

        return packing.over_packs(negative, [some, two, two])

    one_to_three = tf.constant([1.0, 2.0, 3.0])
    assert [list(tensor.numpy()) for tensor in both(one_to_three, one_to_three[:2])] == [
        [-1.0, -2.0, -3.0],
        [-1.0, -2.0],
        [-1.0, -2.0],
    ]
    assert sent == [4, None]


def test_nothing_is_sent_of_nothing() -> None:
    assert packing.over_packs(lambda _: pytest.fail("called"), []) == []
