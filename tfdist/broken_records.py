"""Which file a broken record is in: TensorFlow's error has its offset and no name.

    remember("train", [lambda: train_input(context)])     # whenever a job is given its input
    explain(str(error))                                   # a sentence that names the file, or None

The files are found by making the input's datasets again and reading what these name.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.python.eager import context as tf_context

#: The longest that a search may keep a process that has failed from ending.
SEARCH_SECONDS = 60.0

# By what it is for, what makes the input again: one function for each of its shards.
_makers: dict[str, Sequence[Callable[[], object]]] = {}

# Reading stops at the first of these, so that it is the same whenever the file is read.
_RECORD = r"(truncated|corrupted) record at (\d+)"
_FAULT = re.compile(rf"{_RECORD}|inflate\(\) failed with error -?\d+(?:: [a-z ]*[a-z])?")
# What anything else than TFRecords looks like, or TFRecords that are compressed in another way.
_OF_ANOTHER_KIND = {
    "corrupted record at 0",
    "inflate() failed with error -3: incorrect header check",
}
_COMPRESSIONS = ("", "GZIP", "ZLIB")
# The record's length and the checksum of that, the record, its checksum.
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES, _FOOTER_BYTES = _LENGTH.size + 4, 4


def remember(purpose: str, makers: Sequence[Callable[[], object]]) -> None:
    """Lets `explain` search the files of an input.

    Args:
      purpose: what it is for; takes the place of an earlier one for the same.
      makers: make its datasets.
    """
    _makers[purpose] = makers


def explain(message: str, *, seconds: float = SEARCH_SECONDS) -> str | None:
    """Names the file with the broken record that TensorFlow complains of.

    Args:
      message: that of the DataLossError.
      seconds: how long to search at most.

    Returns:
      One sentence with the file and the offset, or with what was searched in vain; None where the
      error is not about a record, or the input names no files.
    """
    fault = _FAULT.search(message)
    if fault is None:
        return None
    search = _Search(fault[0])
    search.start()
    search.join(seconds)
    return search.outcome(seconds)


class _Search(threading.Thread):
    """Reads the files of the remembered inputs, until one has the fault.

    A thread of its own can be left alone in whatever it hangs in.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(name="tfdist-broken-records", daemon=True)
        self._fault = fault
        self._files: list[str] = []
        self._read = 0
        # The file with the fault; else the first that has another one.
        self._broken: str | None = None

    def run(self) -> None:
        # Whatever goes wrong here has gone wrong before, and is in the traceback.
        with contextlib.suppress(Exception), tf_context.eager_mode():
            datasets = (make() for makers in [*_makers.values()] for make in makers)
            files = dict.fromkeys(file for dataset in datasets for file in _files(dataset))
            self._files = list(files)
            for file in sorted(files, key=lambda file: not _may_have(file, self._fault)):
                faults = _faults(file)
                self._read += 1
                for compression, fault in faults.items():
                    if fault == self._fault:
                        self._broken = _sentence(file, compression, fault)
                        return
                    if self._broken is None and fault not in _OF_ANOTHER_KIND:
                        self._broken = _sentence(file, compression, fault)

    def outcome(self, seconds: float) -> str | None:
        """What has been found so far."""
        if self._broken:
            return self._broken
        begin = f"{self._fault}, in a file that was not found"
        if self.is_alive():
            read = f"{self._read} of {len(self._files)}"
            return f"{begin}: gave up after {seconds:g} s, with {read} read."
        return f"{begin}: none of the {self._read} that were read has it." if self._read else None


def _files(dataset: object) -> Iterator[str]:
    """The files from which a dataset reads, as far as it or its ancestors have their names."""
    if isinstance(dataset, tf.data.Dataset):
        named = list(_named_by(dataset))
        yield from named
        for ancestor in [] if named else dataset._inputs():
            yield from _files(ancestor)


def _named_by(dataset: tf.data.Dataset) -> Iterator[str]:
    """The files that a dataset's strings are the names of; none if they are anything else."""
    has_strings = any(
        isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string
        for spec in tf.nest.flatten(dataset.element_spec)
    )
    # A dataset that reads records does not know how many there will be.
    if not has_strings or int(dataset.cardinality()) < 0:
        return
    for element in dataset:
        parts = [part for part in tf.nest.flatten(element) if part.dtype == tf.string]
        names = [name for part in parts for name in tf.reshape(part, [-1]).numpy()]
        files = [os.fsdecode(name) for name in names if _is_file(name)]
        if not files:
            return  # These are texts, and there may be many.
        yield from files


def _is_file(name: bytes) -> bool:
    try:
        return tf.io.gfile.exists(name) and not tf.io.gfile.isdir(name)
    except (tf.errors.OpError, UnicodeDecodeError):
        return False  # A text with a scheme, or bytes, which TensorFlow fails to say.


def _may_have(file: str, fault: str) -> bool:
    """Whether a record begins where the fault is, by the lengths alone and thus soon known."""
    record = re.fullmatch(_RECORD, fault)
    if record is None:
        return False
    offset, begin = int(record[2]), 0
    try:
        with open(file, "rb") as content:
            size = os.fstat(content.fileno()).st_size
            while begin <= offset and begin + _HEADER_BYTES <= size:
                content.seek(begin)
                (length,) = _LENGTH.unpack(content.read(_LENGTH.size))
                end = begin + _HEADER_BYTES + length + _FOOTER_BYTES
                if record[1] == "truncated" and begin == offset:
                    return end > size
                # Of the length, or of what comes after it.
                if record[1] == "corrupted" and offset in (begin, begin + _HEADER_BYTES):
                    return True
                begin = end
    except OSError:
        pass  # It is not a file of this machine.
    return False


def _faults(file: str) -> dict[str, str]:
    """By compression what is wrong with a file; nothing if it can be read to its end with one."""
    faults = {}
    for compression in _COMPRESSIONS:
        try:
            # Several at a time, which is several times as fast.
            for _ in tf.data.TFRecordDataset(file, compression).batch(16):
                pass
        except tf.errors.DataLossError as error:
            fault = _FAULT.search(error.message)
            faults[compression] = fault[0] if fault else error.message
        else:
            return {}
    return faults


def _sentence(file: str, compression: str, fault: str) -> str:
    if record := re.fullmatch(_RECORD, fault):
        place = f"byte {record[2]}{' of its decompressed data' if compression else ''}"
        received = f"a record at {place} that is {record[1]}"
    else:
        received = f"{compression} data that cannot be decompressed ({fault})"
    return (
        f"{file}: received {received}; accepted: whole TFRecord files. Write the file again, or "
        "take it out of the input."
    )
