"""The CIFAR-10 writer and reader, on small real files."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.data import cifar10, records, sources
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")


def write_examples(directory: Path, count: int) -> Path:
    """Writes `count` examples in each split; the first two pixels of example i encode i."""
    images = np.random.RandomState(1).randint(1, 256, (count, 3, 32, 32)).astype(np.uint8)
    images[:, 0, 0, 0] = np.arange(count) % 256
    images[:, 0, 0, 1] = np.arange(count) // 256
    split = sources.Split(images, np.arange(count, dtype=np.int64) % 10)
    splits = dict.fromkeys(sources.SPLITS, split)
    records.write(directory, "numbered", cifar10.serialized(splits))
    return directory


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    @functools.cache
    def directory(count: int) -> Path:
        return write_examples(tmp_path_factory.mktemp("examples"), count)

    return directory


def context(pipelines: int, pipeline: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(
        num_input_pipelines=pipelines, input_pipeline_id=pipeline, num_replicas_in_sync=pipelines
    )


def read(dataset: tf.data.Dataset) -> tuple[list[int], list[int]]:
    """The numbers of the examples, in order, and the size of each batch."""
    which: list[int] = []
    sizes: list[int] = []
    for images, labels in dataset:
        numbers = (images[:, 0, 0, 0] + 256 * images[:, 0, 1, 0]).numpy().astype(int).tolist()
        assert [number % 10 for number in numbers] == labels.numpy().tolist()
        which += numbers
        sizes.append(len(numbers))
    return which, sizes


# Writing.


def test_another_source_in_the_same_directory_is_rejected(tmp_path: Path) -> None:
    write_examples(tmp_path, 3)
    with pytest.raises(UsageError, match=r"--source: received 'digits'.*numbered.*--data_dir"):
        cifar10.write(tmp_path, "digits")


def test_an_unknown_source_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--source"):
        cifar10.write(tmp_path / "data", "cifar100")
    assert not (tmp_path / "data").exists()


# Reading: errors.


def test_the_error_for_a_directory_without_records_names_the_flag_and_the_command(
    tmp_path: Path,
) -> None:
    remedy = r"--data_dir: .*tfdist data cifar10 --data_dir="
    for data_dir in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match=remedy):
            cifar10.dataset(data_dir, "train", batch_size=2)
        with pytest.raises(UsageError, match=remedy):
            cifar10.num_examples(data_dir, "train")


def test_a_manifest_without_the_split_is_an_error(tmp_path: Path) -> None:
    records.write(tmp_path, "digits", {"train.tfrecords": [b"x"]})
    with pytest.raises(UsageError, match=r"train\.tfrecords'.*eval\.tfrecords"):
        cifar10.num_examples(tmp_path, "eval")
    with pytest.raises(UsageError, match=r"validation\.tfrecords"):
        cifar10.write(tmp_path, "digits")


def test_invalid_arguments_are_errors(numbered: Callable[..., Path]) -> None:
    data_dir = numbered(7)
    with pytest.raises(UsageError, match=r"split: received 'test'; accepted: train, validation"):
        cifar10.dataset(data_dir, "test", batch_size=2)
    with pytest.raises(UsageError, match=r"batch_size: received 0"):
        cifar10.dataset(data_dir, "train", batch_size=0)
    with pytest.raises(UsageError, match=r"input_context: received '8 input pipelines'"):
        cifar10.dataset(data_dir, "train", context(8, 7), batch_size=1)


def test_a_file_of_another_size_is_an_error_before_training(tmp_path: Path) -> None:
    write_examples(tmp_path, 3)
    with (tmp_path / "train.tfrecords").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UsageError, match=r"train\.tfrecords.*Delete"):
        cifar10.dataset(tmp_path, "train", batch_size=2)


def test_a_damaged_record_is_an_error_while_reading(tmp_path: Path) -> None:
    write_examples(tmp_path, 3)
    path = tmp_path / "train.tfrecords"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        read(cifar10.dataset(tmp_path, "train", batch_size=2))


def example(image: bytes = bytes(3072), label: int = 1) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(
        features=tf.train.Features(feature=feature)
    ).SerializeToString()
    return serialized


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (example(bytes(2 * 3072)), "the image does not have 3072 bytes"),
        (example(b""), "the image does not have 3072 bytes"),
        (example(label=2**40), "the label is not from 0 to 2147483647"),
        (example(label=-1), "the label is not from 0 to 2147483647"),
        (b"no Example", "the record is no Example"),
        (tf.train.Example().SerializeToString(), "image"),
    ],
    ids=["large", "empty", "label", "negative", "text", "nothing"],
)
def test_a_wrong_record_is_an_error_with_its_file_and_number(
    record: bytes, problem: str, tmp_path: Path
) -> None:
    records.write(tmp_path, "x", {"train.tfrecords": [example(), record, example()]})
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        read(cifar10.dataset(tmp_path, "train", batch_size=1))
    assert problem in str(raised.value)
    assert f"{tmp_path}/train.tfrecords, record 1" in str(raised.value)


def test_a_manifest_with_a_wrong_count_is_an_error_while_reading(tmp_path: Path) -> None:
    write_examples(tmp_path, 3)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    content["files"]["train.tfrecords"]["records"] = 4
    path.write_text(json.dumps(content))
    with pytest.raises(tf.errors.FailedPreconditionError, match="contained only 3"):
        read(cifar10.dataset(tmp_path, "train", batch_size=2))


# Reading: examples and their order.


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    count=st.sampled_from([1, 2, 5, 64, 301]),
    pipelines=st.integers(1, 4),
    batch_size=st.integers(1, 70),
    shuffle=st.booleans(),
)
def test_each_example_occurs_once_and_the_cardinality_is_exact(
    numbered: Callable[..., Path],
    count: int,
    pipelines: int,
    batch_size: int,
    shuffle: bool,
) -> None:
    pipelines = min(pipelines, count)
    which: list[int] = []
    for pipeline in range(pipelines):
        dataset = cifar10.dataset(
            numbered(count),
            "train",
            context(pipelines, pipeline),
            batch_size=batch_size,
            shuffle=shuffle,
        )
        part, sizes = read(dataset)
        assert dataset.cardinality() == len(sizes)
        assert all(size == batch_size for size in sizes[:-1])
        which += part
    assert sorted(which) == list(range(count))


@pytest.mark.parametrize("count", [7, 100, 301])
@pytest.mark.parametrize("augmented", [False, True])
def test_each_example_occurs_once_per_epoch_over_three_pipelines(
    numbered: Callable[..., Path], count: int, augmented: bool
) -> None:
    datasets = [
        cifar10.dataset(
            numbered(count),
            "train",
            context(3, pipeline),
            batch_size=8,
            shuffle=True,
            distort=augmented,
            seed=5,
        )
        for pipeline in range(3)
    ]
    for _ in range(2):
        labels = Counter(int(x) for dataset in datasets for _, y in dataset for x in y)
        assert labels == Counter(number % 10 for number in range(count))
        if not augmented:
            which = [number for dataset in datasets for number in read(dataset)[0]]
            assert sorted(which) == list(range(count))


def test_without_shuffling_the_order_is_the_file_order(numbered: Callable[..., Path]) -> None:
    data_dir = numbered(301)
    assert read(cifar10.dataset(data_dir, "eval", batch_size=100)) == (
        list(range(301)),
        [100, 100, 100, 1],
    )
    part, _ = read(cifar10.dataset(data_dir, "eval", context(3, 1), batch_size=100))
    assert part == list(range(1, 301, 3))


def test_the_shuffled_order_is_reproducible_and_differs_between_epochs(
    numbered: Callable[..., Path],
) -> None:
    def epochs(seed: int | None) -> list[list[int]]:
        dataset = cifar10.dataset(
            numbered(301), "train", batch_size=16, shuffle=True, distort=False, seed=seed
        )
        return [read(dataset)[0] for _ in range(3)]

    first = epochs(3)
    assert epochs(3) == first
    assert len({tuple(order) for order in [*first, *epochs(4), *epochs(None)]}) == 9
    # The entire shard is shuffled: with a smaller buffer the last examples could not be early.
    earliest = min(order.index(number) for order in first for number in range(280, 301))
    assert earliest < 60


def test_a_repeated_dataset_has_complete_epochs_and_full_batches(
    numbered: Callable[..., Path],
) -> None:
    dataset = cifar10.dataset(
        numbered(100), "train", context(3, 2), batch_size=8, shuffle=True, repeat=True, seed=1
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec[0].shape == [8, 32, 32, 3]
    which, sizes = read(dataset.take(33))
    assert sizes == [8] * 33
    shard = list(range(2, 100, 3))
    epochs = [which[start : start + 33] for start in range(0, 264, 33)]
    assert all(sorted(epoch) == shard for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 8


def test_the_element_spec_of_the_batches(numbered: Callable[..., Path]) -> None:
    for augmented in (False, True):
        images, labels = cifar10.dataset(
            numbered(7), "train", batch_size=4, distort=augmented, flip=augmented
        ).element_spec
        assert images.dtype == tf.float32 and images.shape.as_list() == [None, 32, 32, 3]
        assert labels.dtype == tf.int32 and labels.shape.as_list() == [None]


def test_the_options_disable_autotuning_and_auto_sharding_of_shards(
    numbered: Callable[..., Path],
) -> None:
    everything = cifar10.dataset(numbered(7), "train", batch_size=4).options()
    shard = cifar10.dataset(numbered(7), "train", context(2, 0), batch_size=4).options()
    for options in (everything, shard):
        assert options.autotune.enabled is False
        assert options.deterministic is True
    policy = tf.data.experimental.AutoShardPolicy
    assert shard.experimental_distribute.auto_shard_policy == policy.OFF
    assert everything.experimental_distribute.auto_shard_policy == policy.DATA


def test_the_file_is_read_only_once(tmp_path: Path) -> None:
    write_examples(tmp_path, 20)
    for shuffle in (False, True):
        dataset = cifar10.dataset(tmp_path, "train", batch_size=4, shuffle=shuffle)
        if shuffle:
            # Filling the shuffle buffer completes the cache.
            next(iter(dataset))
        else:
            read(dataset)
        path = tmp_path / "train.tfrecords"
        path.rename(tmp_path / "away")
        assert sorted(read(dataset)[0]) == list(range(20))
        (tmp_path / "away").rename(path)


def test_a_graph_of_an_estimator_reads_the_same_examples(numbered: Callable[..., Path]) -> None:
    def batches() -> list[Any]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            dataset = cifar10.dataset(
                numbered(20),
                "train",
                context(2, 1),
                batch_size=5,
                shuffle=True,
                distort=True,
                flip=True,
                seed=2,
                repeat=True,
            )
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            session.run(iterator.initializer)
            element = iterator.get_next()
            return [session.run(element) for _ in range(4)]

    first, second = batches(), batches()
    assert [len(labels) for _, labels in first] == [5, 5, 5, 5]
    for (images, labels), (again, labels_again) in zip(first, second, strict=True):
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(labels, labels_again)
    labels = np.concatenate([labels for _, labels in first])
    assert sorted(labels[:10]) == sorted(labels[10:]) == sorted(i % 10 for i in range(1, 20, 2))
