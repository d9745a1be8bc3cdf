"""TFRecord files that are written whole or not at all, with a manifest to verify them by.

    manifest = write(directory, "digits", {"train.tfrecords": serialized_examples})
    read_manifest(directory)             # the same Manifest, or None where there is none
    verify(directory, manifest)          # raises UsageError on the first file that does not match
    count(path)                          # a FileEntry of a file without a manifest

`manifest.json` is written last: a directory that has one has all of its files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tfdist.errors import UsageError

MANIFEST_NAME = "manifest.json"

# A TFRecord is its length (uint64, little endian), the length's CRC (uint32), the payload and the
# payload's CRC (uint32): https://www.tensorflow.org/tutorials/load_data/tfrecord
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = _LENGTH.size + 4
_FOOTER_BYTES = 4


@dataclass(frozen=True)
class FileEntry:
    """What one TFRecord file holds.

    Attributes:
      records: the number of records.
      bytes: the file's size in bytes.
      sha256: the hexadecimal SHA-256 of the whole file.
    """

    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What one directory of TFRecord files holds.

    Attributes:
      source: the name of what the records were made from.
      files: an entry for each file name.
    """

    source: str
    files: Mapping[str, FileEntry]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what is written there becomes `path` at the end.

    The temporary file is flushed to the disk before it is renamed, and removed on any error. Only
    a process that is killed outright leaves one behind, as a hidden `.<name>.<random>.partial`.

    Raises:
      UsageError: the file cannot be written: the disk is full, the directory is read-only.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        # The new name is itself data of the directory.
        _flush_to_disk(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write(directory: Path, source: str, files: Mapping[str, Iterable[bytes]]) -> Manifest:
    """Writes each file of serialized records, then the manifest; or, on any error, none of them.

    The directory is created when missing. A file that is there already stays when it holds the
    same bytes; another one is refused rather than overwritten.

    Args:
      directory: where the files go.
      source: the name for the manifest.
      files: the records of each file name, already serialized.

    Raises:
      UsageError: the disk is full, the directory cannot be written, or holds other files of these
        names.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(directory, error) from error
    entries: dict[str, FileEntry] = {}
    # All are staged before the first is renamed, so that a disk that fills up leaves none.
    with ExitStack() as staged:
        for name, payloads in files.items():
            temporary = staged.enter_context(replacing(directory / name))
            written = _write_records(temporary, payloads)
            entries[name] = inspect(temporary)
            if entries[name].records != written:
                raise OSError(f"{written} records written, {entries[name].records} read back")
        for name, entry in entries.items():
            if (directory / name).exists() and inspect(directory / name) != entry:
                raise _mismatch(directory / name, "other records, without a manifest", entry)
    manifest = Manifest(source, entries)
    with replacing(directory / MANIFEST_NAME) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """Returns the directory's manifest, or None where there is none.

    Raises:
      UsageError: there is one and it cannot be read.
    """
    path = directory / MANIFEST_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(
            str(content["source"]),
            {
                name: FileEntry(int(entry["records"]), int(entry["bytes"]), str(entry["sha256"]))
                for name, entry in content["files"].items()
            },
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "--data_dir",
            received=str(path),
            accepted="a manifest as tfdist writes it",
            remedy=f"Delete this directory's files or use another --data_dir ({error!r}).",
        ) from error


def verify(directory: Path, manifest: Manifest) -> None:
    """Reads every file of the manifest again and compares records, bytes and SHA-256.

    Raises:
      UsageError: a file is missing or does not match; it names the first such file.
    """
    for name, expected in manifest.files.items():
        path = directory / name
        check_size(path, expected)
        found = inspect(path)
        if found != expected:
            raise _mismatch(path, found, expected)


def check_size(path: Path, expected: FileEntry) -> None:
    """Compares a file's size alone: what a reader can afford each time.

    Raises:
      UsageError: the file is missing or has another size.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _mismatch(path, error.strerror, expected) from error
    if size != expected.bytes:
        raise _mismatch(path, f"{size} bytes", expected)


def inspect(path: Path) -> FileEntry:
    """Counts and hashes a TFRecord file in one pass, without TensorFlow.

    Raises:
      UsageError: the file ends within a record, or cannot be read.
    """
    digest = hashlib.sha256()
    records = 0
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while header := file.read(_HEADER_BYTES):
                digest.update(header)
                left = size - file.tell()
                # Compared before it is read: a damaged length may ask for any amount of memory.
                if (
                    len(header) < _HEADER_BYTES
                    or (rest := _LENGTH.unpack_from(header)[0] + _FOOTER_BYTES) > left
                ):
                    raise UsageError(
                        "--data_dir",
                        received=str(path),
                        accepted="a whole TFRecord file",
                        remedy=f"It ends within record {records}: "
                        "delete the file and write it again, or use another --data_dir.",
                    )
                digest.update(file.read(rest))
                records += 1
    except OSError as error:
        raise _cannot_read(path, error) from error
    return FileEntry(records, size, digest.hexdigest())


def count(path: Path) -> FileEntry:
    """As `inspect`, read once a process for each state of the file.

    Raises:
      UsageError: as `inspect`, or the file has no records.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise _cannot_read(path, error) from error
    entry = _inspect_once(path, found.st_size, found.st_mtime_ns)
    if not entry.records:
        raise UsageError(
            "--data_dir",
            received=str(path),
            accepted="a TFRecord file with records",
            remedy="It is empty: delete it and write it again, or use another --data_dir.",
        )
    return entry


@functools.lru_cache
def _inspect_once(path: Path, size: int, modified: int) -> FileEntry:
    return inspect(path)


def _write_records(path: Path, payloads: Iterable[bytes]) -> int:
    """Writes the records and returns how many they were; raises OSError."""
    import tensorflow as tf

    count = 0
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for payload in payloads:
                writer.write(payload)
                count += 1
    except tf.errors.OpError as error:
        # TensorFlow has its own errors for a full disk and for every other errno.
        raise OSError(error.message.rpartition("; ")[2]) from error
    return count


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "--data_dir",
        received=str(path),
        accepted="a directory on a disk with room for the records, writable by this process",
        remedy=f"Free some space or use another --data_dir: {error.strerror or error}.",
    )


def _cannot_read(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "--data_dir",
        received=str(path),
        accepted="a readable TFRecord file",
        remedy=f"Make it readable or use another --data_dir ({error.strerror}).",
    )


def _mismatch(path: Path, found: object, expected: FileEntry) -> UsageError:
    return UsageError(
        "--data_dir",
        received=f"{path}: {found}",
        accepted=str(expected),
        remedy=f"Delete {path} and {path.parent / MANIFEST_NAME} and write again, "
        "or use another --data_dir.",
    )
