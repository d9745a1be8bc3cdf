"""Truncated and corrupted TFRecord files of the user's own, and the search for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist import broken_records
from tfdist.runtime import excepthook

_RECORDS = 40
# What a record takes before its payload, and in all beside it.
_HEADER_BYTES, _FRAME_BYTES = 12, 16


def payloads(seed: int) -> list[bytes]:
    """Records of many lengths, so that each file has its records in other places."""
    random = np.random.default_rng(seed)
    return [random.bytes(int(length)) for length in random.integers(50, 500, _RECORDS)]


def offset(index: int, record: int) -> int:
    """Where a record of the file of this index begins."""
    return sum(len(payload) + _FRAME_BYTES for payload in payloads(index)[:record])


def place(index: int, record: int, damage: str) -> int:
    """Where TensorFlow says that a record of a damaged payload is."""
    return offset(index, record) + (_HEADER_BYTES if damage == "corrupted" else 0)


def write(path: Path, index: int, compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for payload in payloads(index):
            writer.write(payload)


def truncate(path: Path, size: int) -> None:
    os.truncate(path, size)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def error_of(dataset: tf.data.Dataset) -> str:
    """The message of the DataLossError that reading the dataset ends with."""
    with pytest.raises(tf.errors.DataLossError) as caught:
        for _ in dataset:
            pass
    return str(caught.value)


def sentence(path: Path, received: str) -> str:
    return (
        f"{path}: received {received}; accepted: whole TFRecord files. Write the file again, or "
        "take it out of the input."
    )


def by_interleave(files: tf.data.Dataset, compression: str = "") -> tf.data.Dataset:
    return files.interleave(lambda file: tf.data.TFRecordDataset(file, compression))


def from_slices(paths: Sequence[Path]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices([str(path) for path in paths])


def listed(paths: Sequence[Path]) -> tf.data.Dataset:
    return tf.data.Dataset.list_files(str(paths[0].parent / "*.tfrecords"))


PIPELINES: dict[str, Callable[[Sequence[Path]], tf.data.Dataset]] = {
    "list": lambda paths: tf.data.TFRecordDataset([str(path) for path in paths]),
    "parallel": lambda paths: tf.data.TFRecordDataset(from_slices(paths), num_parallel_reads=2),
    "list_files": lambda paths: by_interleave(listed(paths)),
    "flat_map": lambda paths: from_slices(paths).flat_map(tf.data.TFRecordDataset),
    "whole": lambda paths: (
        by_interleave(listed(paths).shard(2, 1).shuffle(9).repeat())
        .map(tf.strings.length)
        .shuffle(20)
        .batch(4)
        .prefetch(2)
    ),
    "names_without_directory": lambda paths: by_interleave(
        from_slices([Path(path.name) for path in paths]).map(
            lambda name: tf.strings.join([f"{paths[0].parent}/", name])
        )
    ),
    "with_labels": lambda paths: tf.data.Dataset.from_tensor_slices(
        {"label": ["one"] * len(paths), "file": [str(path) for path in paths]}
    ).interleave(lambda names: tf.data.TFRecordDataset(names["file"])),
    "zipped": lambda paths: tf.data.Dataset.zip(
        (tf.data.Dataset.range(1000), tf.data.TFRecordDataset([str(path) for path in paths]))
    ).apply(tf.data.experimental.assert_cardinality(1000)),
}


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken_records, "_makers", {})


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Six whole files."""
    paths = [tmp_path / f"train-{index}.tfrecords" for index in range(6)]
    for index, path in enumerate(paths):
        write(path, index)
    return paths


@pytest.mark.parametrize("damage", ["truncated", "corrupted"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_file_and_the_offset_are_named(paths: list[Path], pipeline: str, damage: str) -> None:
    # The second of two shards, in the order of their names or in any other.
    for path in paths if pipeline == "whole" else paths[3:4]:
        begin = offset(paths.index(path), 20)
        (truncate if damage == "truncated" else flip)(path, begin + 30)

    def make() -> tf.data.Dataset:
        return PIPELINES[pipeline](paths)

    broken_records.remember("train", [make])
    said = broken_records.explain(error_of(make()))
    wanted = [
        sentence(path, f"a record at byte {place(index, 20, damage)} that is {damage}")
        for index, path in enumerate(paths)
        if pipeline == "whole" or index == 3
    ]
    assert said in wanted


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_compressed_file_is_named(paths: list[Path], compression: str) -> None:
    for index, path in enumerate(paths):
        write(path, index, compression)
    size = paths[3].stat().st_size

    def make() -> tf.data.Dataset:
        return by_interleave(listed(paths), compression)

    broken_records.remember("train", [make])
    truncate(paths[3], size // 2)
    said = broken_records.explain(error_of(make()))
    begins = [offset(3, record) for record in range(_RECORDS)]
    wanted = "a record at byte {} of its decompressed data that is truncated"
    assert said in [sentence(paths[3], wanted.format(begin)) for begin in begins]

    write(paths[3], 3, compression)
    flip(paths[3], size // 2)
    said = broken_records.explain(error_of(make()))
    assert said is not None
    assert said.startswith(f"{paths[3]}: received {compression} data that cannot be decompressed (")


def test_of_several_broken_files_the_one_of_the_error_is_named(paths: list[Path]) -> None:
    for index in (1, 3, 4):
        flip(paths[index], offset(index, 20) + 30)
    broken_records.remember("train", [lambda: PIPELINES["list"](paths)])
    message = error_of(tf.data.TFRecordDataset(str(paths[3])))
    assert broken_records.explain(message) == sentence(
        paths[3], f"a record at byte {place(3, 20, 'corrupted')} that is corrupted"
    )


def test_of_several_broken_compressed_files_too(paths: list[Path]) -> None:
    for index, path in enumerate(paths):
        write(path, index, "GZIP")
        if index in (1, 3, 4):
            truncate(path, path.stat().st_size // (index + 1))
    broken_records.remember("train", [lambda: by_interleave(listed(paths), "GZIP")])
    said = broken_records.explain(error_of(tf.data.TFRecordDataset(str(paths[3]), "GZIP")))
    assert said is not None
    assert said.startswith(f"{paths[3]}: received a record at byte ")


def test_the_length_of_a_record_is_broken(paths: list[Path]) -> None:
    flip(paths[3], offset(3, 20) + 2)
    broken_records.remember("train", [lambda: PIPELINES["list_files"](paths)])
    assert broken_records.explain(error_of(PIPELINES["list_files"](paths))) == sentence(
        paths[3], f"a record at byte {offset(3, 20)} that is corrupted"
    )


def test_where_a_record_begins_is_known_without_reading_it(paths: list[Path]) -> None:
    truncate(paths[3], offset(3, 20) + 30)
    at = offset(3, 20)
    may_have = broken_records._may_have
    assert may_have(str(paths[3]), f"truncated record at {at}")
    assert not may_have(str(paths[3]), f"truncated record at {offset(3, 19)}")
    assert may_have(str(paths[3]), f"corrupted record at {offset(3, 19)}")
    assert may_have(str(paths[3]), f"corrupted record at {offset(3, 19) + _HEADER_BYTES}")
    others = [path for path in paths if path != paths[3]]
    for fault in (f"truncated record at {at}", f"corrupted record at {at}"):
        assert not any(may_have(str(path), fault) for path in others)
    assert not may_have(str(paths[3]), "corrupted record at 99999999")
    assert not may_have("/no/such/file", "corrupted record at 0")


def test_where_no_file_has_the_fault_the_first_broken_one_is_named(paths: list[Path]) -> None:
    text = paths[0].with_name("labels.txt")
    text.write_text("no records\n" * 9)
    broken_records.remember("train", [lambda: PIPELINES["list"]([text, *paths])])
    message = "truncated record at 7' failed with Read less bytes than requested"
    assert broken_records.explain(message) == (
        "truncated record at 7, in a file that was not found: none of the 7 that were read has it."
    )
    truncate(paths[4], offset(4, 20) + 30)
    assert broken_records.explain(message) == sentence(
        paths[4], f"a record at byte {offset(4, 20)} that is truncated"
    )


def test_other_errors_and_inputs_are_not_explained(paths: list[Path]) -> None:
    message = "corrupted record at 9"
    assert broken_records.explain(message) is None
    broken_records.remember("train", [lambda: tf.data.Dataset.range(9)])
    broken_records.remember("eval", [lambda: tf.data.Dataset.from_tensor_slices(["no", "file"])])
    assert broken_records.explain(message) is None
    broken_records.remember("train", [lambda: PIPELINES["list"](paths)])
    assert broken_records.explain(message) is not None
    assert broken_records.explain("Checksum does not match: stored 1 vs. calculated 2") is None


@pytest.mark.filterwarnings("error")
def test_an_input_that_cannot_be_made_again_is_no_further_error() -> None:
    def fails() -> tf.data.Dataset:
        raise RuntimeError("the second time")

    broken_records.remember("train", [fails])
    assert broken_records.explain("corrupted record at 9") is None


def test_the_search_ends_in_time_whatever_it_waits_for(paths: list[Path]) -> None:
    flip(paths[0], offset(0, 20) + 30)
    message = error_of(tf.data.TFRecordDataset(str(paths[0])))
    os.remove(paths[0])
    os.mkfifo(paths[0])
    broken_records.remember("train", [lambda: PIPELINES["list"](paths)])
    begin = time.monotonic()
    said = broken_records.explain(message, seconds=2)
    assert time.monotonic() - begin < 4
    assert said == (
        f"corrupted record at {place(0, 20, 'corrupted')}, in a file that was not found: gave up "
        "after 2 s, with 0 of 6 read."
    )
    os.close(os.open(paths[0], os.O_RDWR))  # Lets the thread go on.


def test_a_job_remembers_what_it_trains_and_evaluates_on(
    paths: list[Path], tiny: TinyTraining
) -> None:
    job = tiny.job()
    truncate(paths[3], offset(3, 20) + 30)
    job.dataset(lambda _: PIPELINES["list"](paths))
    message = error_of(PIPELINES["list"](paths))
    wanted = sentence(paths[3], f"a record at byte {offset(3, 20)} that is truncated")
    assert broken_records.explain(message) == wanted
    job.dataset(tiny.train_input)
    assert broken_records.explain(message) is None
    job.eval_dataset(lambda _: PIPELINES["list"](paths))
    assert broken_records.explain(message) == wanted


def test_an_interrupted_search_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(message: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(broken_records, "explain", interrupted)
    error = tf.errors.DataLossError(None, None, "corrupted record at 9")
    try:
        assert excepthook._broken_record(error) is None
    except KeyboardInterrupt:  # It would end pytest.
        pytest.fail("the interruption should not get out")
