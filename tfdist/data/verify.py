"""Verifies TFRecord files: reads each one to its end and reports the first damaged record.

    for damage in verify(["train-0.tfrecords", "train-1.tfrecords"]):
        print(damage)

TensorFlow's own error has the offset of a damaged record, but not the file name.
"""

from __future__ import annotations

import re
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
      fault: TensorFlow's message.
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
            f"{self.file}: received {self.fault}{of_data}; accepted: {self.accepted}. Write the "
            "file again, or remove it from the input."
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
            # Batching makes this several times as fast.
            for _ in tf.data.TFRecordDataset(file, compression).batch(16):
                pass
        except tf.errors.DataLossError as error:
            fault = _FAULT.search(error.message)
            damages.append(Damage(file, fault[0] if fault else error.message, compression))
        else:
            return None
    likely = [damage for damage in damages if not damage.fault.startswith(_OTHER_COMPRESSION)]
    return (likely or damages)[0]
