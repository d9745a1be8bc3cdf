"""Truncated and corrupted TFRecord files, and the command that names them."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.data import records
from tfdist.data.verify import verify
from tfdist.tools.commands import cli

pytestmark = pytest.mark.stacks("newest")

# The size of a record's header, and of all its bytes besides the payload.
_HEADER_BYTES, _FRAME_BYTES = 12, 16
_PAYLOADS = [bytes([index]) * (50 + 7 * index) for index in range(40)]


def offset(record: int) -> int:
    """The offset of a record."""
    return sum(len(payload) + _FRAME_BYTES for payload in _PAYLOADS[:record])


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three intact files, with each compression."""
    paths = [tmp_path / f"train-{index}.tfrecords" for index in range(3)]
    for path, compression in zip(paths, ("", "GZIP", "ZLIB"), strict=True):
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for payload in _PAYLOADS:
                writer.write(payload)
    return paths


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_intact_files_are_reported_as_intact(
    paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(verify(map(str, paths))) == []
    assert cli.main(["data", "verify", *map(str, paths)]) == 0
    assert capsys.readouterr().out == "3 of 3 files are intact\n"


@pytest.mark.parametrize("kind", ["truncated", "corrupted"])
def test_a_damaged_file_and_its_offset_are_named(
    paths: list[Path], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = offset(20)
    if kind == "truncated":
        os.truncate(paths[0], begin + 30)
    else:
        flip(paths[0], begin + 30)
        begin += _HEADER_BYTES  # Only the checksum of the payload is wrong, not that of its length.
    assert cli.main(["data", "verify", *map(str, paths)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{paths[0]}: received {kind} record at {begin}; accepted: TFRecords. ")
    assert last == "2 of 3 files are intact"


@pytest.mark.parametrize(("index", "compression"), [(1, "GZIP"), (2, "ZLIB")])
def test_a_damaged_compressed_file_is_named(
    paths: list[Path], index: int, compression: str
) -> None:
    flip(paths[index], paths[index].stat().st_size // 2)
    (damage,) = verify(map(str, paths))
    assert damage.startswith(f"{paths[index]}: received ")
    assert f" of its {compression} data; accepted: TFRecords." in damage


def test_a_file_of_another_kind_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("This is a text file, not a file of TFRecords.\n" * 9)
    (damage,) = verify([str(path)])
    assert damage.startswith(f"{path}: received corrupted record at 0; accepted: TFRecords.")


def test_a_missing_file_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", "verify", str(tmp_path / "missing")])
    assert ended.value.code == 2
    assert "FILE: received '" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        # Each record is its length, the length's code, the payload and the payload's code.
        (lambda content: content[:-18], "received 2 records in 36 bytes; accepted: the 3 records "),
        (lambda content: content[18:36] + content[:18] + content[36:], "received other contents"),
    ],
)
def test_a_file_that_was_cut_between_two_records_differs_from_its_manifest(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[bytes], bytes],
    fault: str,
) -> None:
    records.write(tmp_path, "test", {"train.tfrecords": [b"aa", b"bb", b"cc"]})
    file = tmp_path / "train.tfrecords"
    assert cli.main(["data", "verify", str(file)]) == 0
    file.write_bytes(change(file.read_bytes()))
    assert cli.main(["data", "verify", str(file)]) == 1
    output = capsys.readouterr().out
    assert f"{file}: {fault}" in output and "(manifest.json)" in output


# Directories.


def test_the_files_of_a_directory_are_verified(
    paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("This is no file of TFRecords.")
    (tmp_path / ".train-0.tfrecords.partial").write_bytes(b"partial")
    os.truncate(paths[2], 100)
    assert cli.main(["data", "verify", str(tmp_path)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{paths[2]}: received ")
    assert last == "2 of 3 files are intact"


def test_a_missing_file_of_a_manifest_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records.write(tmp_path, "test", {"train.tfrecords": [b"aa"], "eval.tfrecords": [b"bb"]})
    assert cli.main(["data", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "2 of 2 files are intact\n"
    (tmp_path / "train.tfrecords").unlink()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["data", "verify", str(tmp_path)])
    assert f"FILE: received '{tmp_path}/train.tfrecords'" in capsys.readouterr().err


# What TensorFlow reads without an error.

_LAST = offset(39)


@pytest.mark.parametrize(
    ("compress", "of_data"),
    [(bytes, ""), (gzip.compress, " of its GZIP data"), (zlib.compress, " of its ZLIB data")],
)
def test_a_file_that_ends_within_a_header_is_damaged(
    paths: list[Path], compress: Callable[[bytes], bytes], of_data: str
) -> None:
    content = paths[0].read_bytes()
    cut = [paths[0].with_name(f"cut-{_LAST + keep}") for keep in range(1, 12)]
    for keep, path in enumerate(cut, 1):
        path.write_bytes(compress(content[: _LAST + keep]))
    for keep, damage in enumerate(verify(map(str, cut)), 1):
        end = f"an end at byte {_LAST + keep}, within the header of the record at {_LAST}{of_data}"
        assert damage.startswith(f"{cut[keep - 1]}: received {end}; accepted: TFRecords. Copy")
    assert keep == 11


@pytest.mark.parametrize(
    ("index", "change", "fault"),
    [
        (1, lambda content: content[:-1], "an end at byte {end}, before the end of its GZIP data"),
        (1, lambda content: content[:-8], "an end at byte {end}, before the end of its GZIP data"),
        (1, lambda content: content + content[:11], "an end at byte {end}, before the end"),
        (2, lambda content: content[:-1], "an end at byte {end}, before the end of its ZLIB data"),
        (2, lambda content: 2 * content, "more bytes, from byte {size} on, behind the end of its "),
    ],
)
def test_a_compressed_file_that_is_not_read_to_its_end_is_damaged(
    paths: list[Path], index: int, change: Callable[[bytes], bytes], fault: str
) -> None:
    content = paths[index].read_bytes()
    changed = change(content)
    paths[index].write_bytes(changed)
    (damage,) = verify(map(str, paths))
    fault = fault.format(size=len(content), end=len(changed))
    assert damage.startswith(f"{paths[index]}: received {fault}")


def test_empty_files_and_joined_gzip_files_are_intact(paths: list[Path], tmp_path: Path) -> None:
    paths[1].write_bytes(2 * paths[1].read_bytes())
    for compression in ("", "GZIP", "ZLIB"):
        paths.append(tmp_path / f"empty-{compression}.tfrecords")
        tf.io.TFRecordWriter(str(paths[-1]), compression).close()
    assert list(verify(map(str, paths))) == []
