"""MNIST: the scikit-learn digits, and sharded batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from tfdist.data import mnist
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15")

REPOSITORY = Path(__file__).parents[3]


def examples(count: int) -> mnist.Examples:
    """Examples; the first two pixels of example i encode i in base 256."""
    images = np.random.RandomState(1).randint(0, 256, (count, 28, 28)).astype(np.uint8)
    images[:, 0, 0] = np.arange(count) % 256
    images[:, 0, 1] = np.arange(count) // 256
    return mnist.Examples(images, np.arange(count, dtype=np.int64) % 10)


def context(pipelines: int, pipeline: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(
        num_input_pipelines=pipelines, input_pipeline_id=pipeline, num_replicas_in_sync=pipelines
    )


def read(dataset: tf.data.Dataset) -> tuple[list[int], list[int]]:
    """The numbers of the examples, in order, and the size of each batch."""
    which: list[int] = []
    sizes: list[int] = []
    for images, labels in dataset.as_numpy_iterator():
        pixels = np.rint(images * 255).astype(int)
        numbers = (pixels[:, 0, 0, 0] + 256 * pixels[:, 0, 1, 0]).tolist()
        assert [number % 10 for number in numbers] == labels.tolist()
        which += numbers
        sizes.append(len(numbers))
    return which, sizes


# Loading.


def test_the_digits_are_scaled_by_three_and_padded() -> None:
    digits = load_digits()
    splits = mnist.load("digits")
    assert list(splits) == ["train", "test"]
    assert [len(splits[split].labels) for split in splits] == [1437, 360]
    # The same order as in `tfdist.data.sources`; its eval split is the test split here.
    order = np.random.RandomState(0).permutation(1797)
    for split, chosen in (("train", order[:1437]), ("test", order[1437:])):
        images, labels = splits[split]
        assert images.dtype == np.uint8 and images.shape == (len(chosen), 28, 28)
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, digits.target[chosen])
        expected = np.zeros((len(chosen), 28, 28), np.uint8)
        scaled = np.rint(digits.images[chosen] * 255 / 16)
        expected[:, 2:26, 2:26] = np.kron(scaled, np.ones((3, 3)))
        np.testing.assert_array_equal(images, expected)
    assert splits["train"].images.max() == 255


def test_an_unknown_source_is_rejected() -> None:
    with pytest.raises(UsageError, match="digits, mnist, fashion_mnist") as raised:
        mnist.load("mnist.npz")
    assert (raised.value.field, raised.value.received) == ("--data_source", "mnist.npz")


def test_loading_does_not_import_tensorflow() -> None:
    program = (
        "import sys; from tfdist.data import mnist; mnist.load('digits'); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=REPOSITORY)


# Batches.


def test_the_batches_are_scaled_and_have_an_element_spec() -> None:
    images, labels = examples(7)
    dataset = mnist.dataset(images, labels, batch_size=4)
    specs = dataset.element_spec
    assert [spec.dtype for spec in specs] == [tf.float32, tf.int32]
    assert [spec.shape.as_list() for spec in specs] == [[None, 28, 28, 1], [None]]
    batches = list(dataset.as_numpy_iterator())
    scaled = np.concatenate([batch for batch, _ in batches])
    np.testing.assert_array_equal(scaled, images[..., None].astype(np.float32) / np.float32(255))
    assert scaled.max() == 1.0 and scaled.min() == 0.0
    np.testing.assert_array_equal(np.concatenate([batch for _, batch in batches]), labels)


@settings(max_examples=15, deadline=None)
@given(
    count=st.sampled_from([1, 2, 5, 64, 301]),
    pipelines=st.integers(1, 4),
    batch_size=st.integers(1, 70),
    shuffle=st.booleans(),
)
def test_each_example_occurs_once_and_the_cardinality_is_exact(
    count: int, pipelines: int, batch_size: int, shuffle: bool
) -> None:
    pipelines = min(pipelines, count)
    which: list[int] = []
    for pipeline in range(pipelines):
        dataset = mnist.dataset(
            *examples(count), context(pipelines, pipeline), batch_size=batch_size, shuffle=shuffle
        )
        part, sizes = read(dataset)
        assert dataset.cardinality() == len(sizes)
        assert all(size == batch_size for size in sizes[:-1])
        which += part
    assert sorted(which) == list(range(count))


def test_each_example_occurs_once_per_epoch_over_three_pipelines() -> None:
    datasets = [
        mnist.dataset(*examples(100), context(3, pipeline), batch_size=8, shuffle=True, seed=5)
        for pipeline in range(3)
    ]
    for _ in range(2):
        parts = [read(dataset)[0] for dataset in datasets]
        assert sorted(number for part in parts for number in part) == list(range(100))
        assert [len(part) for part in parts] == [34, 33, 33]


def test_without_shuffling_the_order_is_the_input_order() -> None:
    assert read(mnist.dataset(*examples(301), batch_size=100)) == (
        list(range(301)),
        [100, 100, 100, 1],
    )
    part, _ = read(mnist.dataset(*examples(301), context(3, 1), batch_size=100))
    assert part == list(range(1, 301, 3))


def test_the_shuffled_order_is_reproducible_and_differs_between_epochs() -> None:
    def epochs(seed: int | None) -> list[list[int]]:
        dataset = mnist.dataset(*examples(301), batch_size=16, shuffle=True, seed=seed)
        return [read(dataset)[0] for _ in range(3)]

    first = epochs(3)
    assert epochs(3) == first
    assert len({tuple(order) for order in [*first, *epochs(4), *epochs(None)]}) == 9
    # The entire shard is shuffled: with a smaller buffer the last examples could not be early.
    assert min(order.index(number) for order in first for number in range(280, 301)) < 60


def test_a_repeated_dataset_has_complete_epochs_and_full_batches() -> None:
    dataset = mnist.dataset(
        *examples(100), context(3, 2), batch_size=8, shuffle=True, repeat=True, seed=1
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec[0].shape == [8, 28, 28, 1]
    which, sizes = read(dataset.take(33))
    assert sizes == [8] * 33
    epochs = [which[start : start + 33] for start in range(0, 264, 33)]
    assert all(sorted(epoch) == list(range(2, 100, 3)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 8


def test_the_options_disable_autotuning_and_auto_sharding_of_shards() -> None:
    everything = mnist.dataset(*examples(7), batch_size=4).options()
    shard = mnist.dataset(*examples(7), context(2, 0), batch_size=4).options()
    for options in (everything, shard):
        assert options.autotune.enabled is False
        assert options.deterministic is True
    policy = tf.data.experimental.AutoShardPolicy
    assert shard.experimental_distribute.auto_shard_policy == policy.OFF
    assert everything.experimental_distribute.auto_shard_policy != policy.OFF


def test_the_graph_contains_only_the_shard() -> None:
    with tf.Graph().as_default() as graph:
        mnist.dataset(*examples(300), context(3, 1), batch_size=4)
    assert 100 * 784 <= len(graph.as_graph_def().SerializeToString()) < 150 * 784


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(UsageError) as raised:
        mnist.dataset(*examples(7), batch_size=0)
    assert (raised.value.field, raised.value.received) == ("batch_size", 0)
    assert raised.value.accepted == "an integer of at least 1"
    with pytest.raises(UsageError) as raised:
        mnist.dataset(*examples(7), context(8, 0), batch_size=1)
    assert (raised.value.field, raised.value.received) == ("input_context", "8 input pipelines")
    assert raised.value.accepted == "at most 7, the number of examples"
    assert read(mnist.dataset(*examples(7), context(7, 6), batch_size=1)) == ([6], [1])
