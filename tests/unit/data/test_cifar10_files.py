"""The files of the CIFAR-10 reader: those of the tutorial, several per split, and caching."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.process.data.test_sources import (
    binary_members,
    check_splits,
    python_members,
    write_archive,
)
from tests.unit.data.test_cifar10 import context, read, write_examples
from tfdist.data import cifar10, memory, records, sources
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")


def read_split(data_dir: Path, split: str) -> sources.Split:
    """Reads a complete split, and converts it to the layout of the sources."""
    count = cifar10.num_examples(data_dir, split)
    ((images, labels),) = cifar10.dataset(data_dir, split, batch_size=count)
    planes = images.numpy().astype(np.uint8).transpose(0, 3, 1, 2)
    return sources.Split(planes, labels.numpy().astype(np.int64))


def write_tutorial_files(directory: Path) -> Path:
    """Writes the files that `generate_cifar10_tfrecords.py` makes from the pickled batches."""
    directory.mkdir()
    members = python_members()
    batches = {
        "train": [f"data_batch_{i}" for i in range(1, 5)],
        "validation": ["data_batch_5"],
        "eval": ["test_batch"],
    }
    for mode, names in batches.items():
        with tf.io.TFRecordWriter(str(directory / f"{mode}.tfrecords")) as writer:
            for name in names:
                content = pickle.loads(members[f"cifar-10-batches-py/{name}"], encoding="bytes")
                for image, label in zip(content[b"data"], content[b"labels"], strict=True):
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
    counts = {split: cifar10.num_examples(data_dir, split) for split in sources.SPLITS}
    assert counts == {"train": 12, "validation": 3, "eval": 3}
    check_splits({split: read_split(data_dir, split) for split in sources.SPLITS})
    shards = [
        cifar10.dataset(data_dir, "train", context(5, pipeline), batch_size=2, shuffle=True)
        for pipeline in range(5)
    ]
    assert [int(shard.cardinality()) for shard in shards] == [2, 2, 1, 1, 1]
    images = [image.numpy().tobytes() for shard in shards for image, _ in shard.unbatch()]
    assert len(images) == len(set(images)) == 12
    assert len(list(data_dir.iterdir())) == 3, "nothing should be written there"


def test_records_are_counted_once_per_process_unless_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = write_tutorial_files(tmp_path / "data")
    counted: list[Path] = []
    count = records._count

    def count_and_record(path: Path) -> records.FileEntry:
        counted.append(path)
        return count(path)

    monkeypatch.setattr(records, "_count", count_and_record)
    for _ in range(2):
        assert cifar10.num_examples(data_dir, "train") == 12
        cifar10.dataset(data_dir, "train", batch_size=2)
    path = data_dir / "train.tfrecords"
    assert counted == [path], "only the files of this split should be read"
    path.write_bytes(path.read_bytes() + (data_dir / "eval.tfrecords").read_bytes())
    assert cifar10.num_examples(data_dir, "train") == 15


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


def test_files_without_a_manifest_must_be_complete(tmp_path: Path) -> None:
    data_dir = write_tutorial_files(tmp_path / "data")
    (data_dir / "eval.tfrecords").unlink()
    with pytest.raises(UsageError, match=r"data without eval\.tfrecords'.*manifest\.json, or"):
        cifar10.num_examples(data_dir, "train")


# Several files per split.


def test_a_split_can_have_several_files(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    md5s = {sources.BINARY_ARCHIVE: write_archive(path, binary_members())}
    data_dir = tmp_path / "data"
    outcome = cifar10.write(data_dir, path, files=5, md5s=md5s)
    names = [f"{split}-{i:05}-of-00005.tfrecords" for split in sources.SPLITS for i in range(5)]
    assert {file.name for file in data_dir.iterdir()} == {*names, "manifest.json"}
    assert [outcome.manifest.files[name].records for name in names] == (
        [3, 3, 2, 2, 2] + [1, 1, 1, 0, 0] * 2
    )
    assert not cifar10.write(data_dir, path, files=5, md5s=md5s).written
    check_splits({split: read_split(data_dir, split) for split in sources.SPLITS})

    with pytest.raises(UsageError, match=r"files: received 1; accepted: 5, .*another --data_dir"):
        cifar10.write(data_dir, path, md5s=md5s)
    with pytest.raises(UsageError, match=r"files: received 0; accepted: an integer of at least 1"):
        cifar10.write(tmp_path / "none", path, files=0, md5s=md5s)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("files", "pipelines"), [(2, 1), (2, 2), (2, 6), (4, 3), (6, 2), (6, 4), (9, 3), (9, 6)]
)
def test_the_number_of_files_does_not_change_the_examples(
    tmp_path: Path, files: int, pipelines: int
) -> None:
    data_dirs = [
        write_examples(tmp_path / "one", 61),
        write_examples(tmp_path / "several", 61, files),
    ]
    for pipeline in range(pipelines):
        one, several = (
            cifar10.dataset(data_dir, "train", context(pipelines, pipeline), batch_size=10)
            for data_dir in data_dirs
        )
        assert read(several) == read(one)
        assert read(several)[0] == list(range(pipeline, 61, pipelines))


@pytest.mark.parametrize(("files", "pipelines", "own"), [(4, 2, [1, 3]), (4, 8, [1]), (2, 2, [1])])
def test_a_task_reads_only_its_own_files(
    tmp_path: Path, files: int, pipelines: int, own: list[int]
) -> None:
    write_examples(tmp_path, 32, files)
    dataset = cifar10.dataset(tmp_path, "train", context(pipelines, 1), batch_size=4)
    for index in set(range(files)) - set(own):
        (tmp_path / cifar10.file_name("train", index, files)).unlink()
    assert read(dataset)[0] == list(range(1, 32, pipelines))


def test_a_missing_file_of_a_split_is_an_error_before_training(tmp_path: Path) -> None:
    write_examples(tmp_path, 8, files=4)
    (tmp_path / "train-00002-of-00004.tfrecords").unlink()
    for pipeline in range(2):
        with pytest.raises(UsageError, match=r"train-00002-of-00004\.tfrecords.*Delete"):
            cifar10.dataset(tmp_path, "train", context(2, pipeline), batch_size=2)


# Caching in memory.


def test_a_split_larger_than_a_quarter_of_the_memory_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples(tmp_path, 40, files=2)
    paths = [tmp_path / cifar10.file_name("train", index, 2) for index in range(2)]
    size = sum(path.stat().st_size for path in paths)
    orders = []
    for available, cached in ((4 * size, True), (4 * size - 1, False)):
        monkeypatch.setattr(memory, "available", lambda available=available: available)
        # The entire split must fit: the other task may run on the same machine.
        dataset = cifar10.dataset(
            tmp_path, "train", context(2, 1), batch_size=4, shuffle=True, seed=1
        )
        orders.append([read(dataset)[0] for _ in range(2)])
        for path in paths:
            path.rename(path.with_suffix(".away"))
        if cached:
            assert sorted(read(dataset)[0]) == list(range(1, 40, 2))
        else:
            with pytest.raises(tf.errors.NotFoundError):
                read(dataset)
        for path in paths:
            path.with_suffix(".away").rename(path)
    assert orders[0] == orders[1], "the order must not depend on the memory"


def test_a_large_shard_is_shuffled_with_a_smaller_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples(tmp_path, 301)
    monkeypatch.setattr(cifar10, "_SHUFFLE_BUFFER_SIZE", 20)
    order, _ = read(cifar10.dataset(tmp_path, "train", batch_size=16, shuffle=True, seed=3))
    assert sorted(order) == list(range(301)) != order
    assert all(number < place + 20 for place, number in enumerate(order))
