"""Verifies TFRecord files: reads each one to its end and reports the first damaged record.

    for sentence in verify(["train-0.tfrecords", "train-1.tfrecords"]):
        print(sentence)

TensorFlow's own error has the offset of a damaged record, but not the file name. It raises none for
a file that ends within the 12 bytes of a record's header, for a compressed file without its last
bytes, and for what follows the end of ZLIB data. These files are damaged, too.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf

from tfdist.data import records

_COMPRESSIONS = ("", "GZIP", "ZLIB")
_FAULT = re.compile(
    r"(truncated|corrupted) record at (\d+)|inflate\(\) failed with error -?\d+(?:: [a-z ]*[a-z])?"
)
# TensorFlow's messages for a file with a different compression.
_OTHER_COMPRESSION = ("corrupted record at 0", "inflate() failed with error -3: incorrect header")


def verify(files: Iterable[str]) -> Iterator[str]:
    """Reads every file to its end, and compares it with the manifest of its directory, if any.

    Only the manifest tells that a file was cut between two records.

    Args:
      files: paths of TFRecord files, uncompressed or compressed with GZIP or ZLIB.

    Yields:
      A sentence for each damaged file: its first fault, with the offset in bytes if TensorFlow
      reports one, and what to do.

    Raises:
      tf.errors.NotFoundError: a file does not exist.
      UsageError: a manifest cannot be read.
    """
    for file in files:
        damage = _damage(file)
        received, accepted = (damage, "TFRecords") if damage else _difference(Path(file))
        if received:
            yield (
                f"{file}: received {received}; accepted: {accepted}. Copy or write the file again, "
                "or remove it from the input."
            )


def _difference(path: Path) -> tuple[str, str]:
    """What a file has, and what it has in the manifest of its directory; empty if it is equal."""
    manifest = records.read_manifest(path.parent)
    expected = manifest.files.get(path.name) if manifest else None
    if expected is None or (actual := records.inspect(path)) == expected:
        return "", ""
    received = f"{actual.records} records in {actual.bytes} bytes"
    if (actual.records, actual.bytes) == (expected.records, expected.bytes):
        received = "other contents"
    accepted = f"the {expected.records} records in {expected.bytes} bytes that were written"
    return received, f"{accepted} ({records.MANIFEST_NAME})"


def _damage(file: str) -> str:
    """The first fault of a file, as TensorFlow says it; empty if there is none."""
    faults = []
    for compression in _COMPRESSIONS:
        try:
            _read(file, compression)
        except tf.errors.DataLossError as error:
            fault = _FAULT.search(error.message)
            of_data = f" of its {compression} data" if compression else ""
            faults.append((fault[0] if fault else error.message) + of_data)
        else:
            return ""
    likely = [fault for fault in faults if not fault.startswith(_OTHER_COMPRESSION)]
    return (likely or faults)[0]


def _read(file: str, compression: str) -> None:
    """Reads a file to its end.

    Raises:
      tf.errors.DataLossError: the file is damaged, or TensorFlow ignores its last bytes.
    """
    end = 0
    # Batching makes this several times as fast.
    for batch in tf.data.TFRecordDataset(file, compression).batch(16).as_numpy_iterator():
        end += sum(map(len, batch)) + len(batch) * records.FRAME_BYTES
    size = _inflated_size(file, compression) if compression else os.path.getsize(file)
    if end < size:
        raise _ignored(f"an end at byte {size}, within the header of the record at {end}")


def _inflated_size(file: str, compression: str) -> int:
    """The size of the data of a compressed file, which must end with its last stream."""
    # TensorFlow reads joined GZIP streams, but only the first of joined ZLIB streams.
    format_bits = zlib.MAX_WBITS + (16 if compression == "GZIP" else 0)
    stream = zlib.decompressobj(format_bits)
    size = 0
    with open(file, "rb") as source:
        while chunk := source.read(2**16):
            while chunk:
                if stream.eof:
                    if compression == "ZLIB":
                        end = source.tell() - len(chunk)
                        raise _ignored(f"more bytes, from byte {end} on, behind the end")
                    stream = zlib.decompressobj(format_bits)
                size += len(stream.decompress(chunk))
                chunk = stream.unused_data
        if not stream.eof:
            raise _ignored(f"an end at byte {source.tell()}, before the end")
    return size


def _ignored(fault: str) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, fault)
