"""Verifies TFRecord files: reads each one to its end and reports the first damaged record.

    for damage in verify(["train-0.tfrecords", "train-1.tfrecords"]):
        print(damage)

TensorFlow's own error has the offset of a damaged record, but not the file name. It raises none for
a file that ends within the 12 bytes of a record's header, for a compressed file without its last
bytes, and for what follows the end of ZLIB data. These files are damaged, too.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from tfdist.data import records

_COMPRESSIONS = ("", "GZIP", "ZLIB")
_FAULT = re.compile(
    r"(truncated|corrupted) record at (\d+)|inflate\(\) failed with error -?\d+(?:: [a-z ]*[a-z])?"
)
# TensorFlow's messages for a file with a different compression.
_OTHER_COMPRESSION = ("corrupted record at 0", "inflate() failed with error -3: incorrect header")


@dataclass(frozen=True)
class Damage:
    """The first fault in a file.

    Attributes:
      file: the file's path.
      fault: TensorFlow's message, or what TensorFlow ignores.
      compression: `GZIP` or `ZLIB`; empty for none.
      accepted: what an intact file has.
    """

    file: str
    fault: str
    compression: str = ""
    accepted: str = "TFRecords"

    def __str__(self) -> str:
        of_data = f" of its {self.compression} data" if self.compression else ""
        return (
            f"{self.file}: received {self.fault}{of_data}; accepted: {self.accepted}. Copy or "
            "write the file again, or remove it from the input."
        )


def verify(files: Iterable[str]) -> Iterator[Damage]:
    """Reads every file to its end, and compares it with the manifest of its directory, if any.

    Only the manifest tells that a file was cut between two records.

    Args:
      files: paths of TFRecord files, uncompressed or compressed with GZIP or ZLIB.

    Yields:
      The first fault of each damaged file, with the offset in bytes if TensorFlow reports one.

    Raises:
      tf.errors.NotFoundError: a file does not exist.
      UsageError: a manifest cannot be read.
    """
    for file in files:
        damage = _damage(file) or _difference(Path(file))
        if damage:
            yield damage


def _difference(path: Path) -> Damage | None:
    """How a file differs from the manifest of its directory."""
    manifest = records.read_manifest(path.parent)
    expected = manifest.files.get(path.name) if manifest else None
    if expected is None or (actual := records.inspect(path)) == expected:
        return None
    received = f"{actual.records} records in {actual.bytes} bytes"
    if (actual.records, actual.bytes) == (expected.records, expected.bytes):
        received = "other contents"
    accepted = f"the {expected.records} records in {expected.bytes} bytes that were written"
    return Damage(str(path), received, accepted=f"{accepted} ({records.MANIFEST_NAME})")


def _damage(file: str) -> Damage | None:
    damages = []
    for compression in _COMPRESSIONS:
        try:
            _read(file, compression)
        except tf.errors.DataLossError as error:
            fault = _FAULT.search(error.message)
            damages.append(Damage(file, fault[0] if fault else error.message, compression))
        else:
            return None
    likely = [damage for damage in damages if not damage.fault.startswith(_OTHER_COMPRESSION)]
    return (likely or damages)[0]


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
