"""The files of the CIFAR-10 reader: those of the tutorial, and shuffling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.data.test_cifar10 import context, read, write_examples
from tfdist.data import cifar10
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")


COUNTS = {"train": 12, "validation": 3, "eval": 3}


def images_of(split: str) -> np.ndarray:
    random = np.random.RandomState(list(COUNTS).index(split))
    return random.randint(0, 256, (COUNTS[split], 3, 32, 32)).astype(np.uint8)


def write_tutorial_files(directory: Path) -> Path:
    """Writes the files that `generate_cifar10_tfrecords.py` makes, with other images."""
    directory.mkdir()
    for split in COUNTS:
        with tf.io.TFRecordWriter(str(directory / f"{split}.tfrecords")) as writer:
            for label, image in enumerate(images_of(split)):
                bytes_list = tf.train.BytesList(value=[image.tobytes()])
                int64_list = tf.train.Int64List(value=[label])
                feature = {
                    "image": tf.train.Feature(bytes_list=bytes_list),
                    "label": tf.train.Feature(int64_list=int64_list),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return directory


# The files of the tutorial, without a manifest.


def test_the_files_of_the_tutorial_can_be_read(tmp_path: Path) -> None:
    data_dir = write_tutorial_files(tmp_path / "data")
    for split, count in COUNTS.items():
        assert cifar10.num_examples(data_dir, split) == count
        ((images, labels),) = cifar10.dataset(data_dir, split, batch_size=count)
        np.testing.assert_array_equal(images.numpy().transpose(0, 3, 1, 2), images_of(split))
        assert labels.numpy().tolist() == list(range(count))
    shards = [
        cifar10.dataset(data_dir, "train", context(5, pipeline), batch_size=2, shuffle=True)
        for pipeline in range(5)
    ]
    assert [int(shard.cardinality()) for shard in shards] == [2, 2, 1, 1, 1]
    images = [image.numpy().tobytes() for shard in shards for image, _ in shard.unbatch()]
    assert len(images) == len(set(images)) == 12
    assert len(list(data_dir.iterdir())) == 3, "nothing should be written there"


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda content: content[:-1], r"train\.tfrecords'.*ends at byte \d+, within record 11"),
        # TensorFlow reads 12 records, without an error.
        (lambda content: content + content[:11], r"train\.tfrecords'.*, within record 12, "),
        (lambda content: b"", r"train\.tfrecords'.*The file is empty"),
        (lambda content: b"not TFRecords", r"train\.tfrecords'.*ends at byte 13, within record 0"),
    ],
)
def test_files_without_a_manifest_must_be_intact(
    tmp_path: Path, damaged: Callable[[bytes], bytes], message: str
) -> None:
    data_dir = write_tutorial_files(tmp_path / "data")
    path = data_dir / "train.tfrecords"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(UsageError, match=rf"--data_dir: received .*{message}.*another --data_dir"):
        cifar10.dataset(data_dir, "train", batch_size=2)
    assert cifar10.num_examples(data_dir, "eval") == 3


def test_a_missing_file_of_the_tutorial_is_an_error(tmp_path: Path) -> None:
    data_dir = write_tutorial_files(tmp_path / "data")
    (data_dir / "eval.tfrecords").unlink()
    with pytest.raises(UsageError, match=r"a directory with eval\.tfrecords\. Write one: "):
        cifar10.num_examples(data_dir, "eval")


# Shuffling.


def test_a_large_shard_is_shuffled_with_a_smaller_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples(tmp_path, 301)
    monkeypatch.setattr(cifar10, "_SHUFFLE_BUFFER_SIZE", 20)
    order, _ = read(cifar10.dataset(tmp_path, "train", batch_size=16, shuffle=True, seed=3))
    assert sorted(order) == list(range(301)) != order
    assert all(number < place + 20 for place, number in enumerate(order))
