"""Loads images in CIFAR-10's format: a download, a CIFAR-10 archive, or scikit-learn's digits.

    identify("digits")                          # 'digits', the name for the manifest
    load("cifar-10-python.tar.gz")["train"]     # Split(images [40000, 3, 32, 32], labels [40000])

Each source has the same three splits. CIFAR-10's fifth training batch is the validation split.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdist.errors import UsageError
from tfdist.process.paths import local_path

SPLITS = ("train", "validation", "eval")
IMAGE_SHAPE = (3, 32, 32)
NUM_CLASSES = 10

PYTHON_ARCHIVE = "cifar-10-python.tar.gz"
BINARY_ARCHIVE = "cifar-10-binary.tar.gz"

# https://www.cs.toronto.edu/~kriz/cifar.html
ARCHIVE_MD5S: Mapping[str, str] = {
    PYTHON_ARCHIVE: "c58f30108f718f92721af3b95e74349a",
    BINARY_ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530",
}
_ARCHIVE_URL = f"https://www.cs.toronto.edu/~kriz/{BINARY_ARCHIVE}"

_ACCEPTED = f"download, digits, or the path of {PYTHON_ARCHIVE} or {BINARY_ARCHIVE}"

_BATCHES_OF_SPLIT = {
    "train": tuple(f"data_batch_{i}" for i in range(1, 5)),
    "validation": ("data_batch_5",),
    "eval": ("test_batch",),
}
_BATCHES = tuple(batch for batches in _BATCHES_OF_SPLIT.values() for batch in batches)

# What the pickle of an array names: Python 3 pickles bytes for Python 2 as encoded text.
_OF_ARRAYS = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}

_DIGITS_SIZES = {"train": 1257, "validation": 180, "eval": 360}
_DIGITS_SCALE = 4
_DIGITS_BRIGHTEST = 16
_DIGITS_SEED = 0


class Split(NamedTuple):
    """Images and their labels.

    Attributes:
      images: uint8 [examples, 3, 32, 32]: red, green, blue planes, row by row, 0 to 255.
      labels: int64 [examples], 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


def identify(source: str | os.PathLike[str], *, md5s: Mapping[str, str] = ARCHIVE_MD5S) -> str:
    """Returns the name of a source.

    Args:
      source: `download`, `digits` or the path of an archive.
      md5s: the MD5 of each accepted archive, by the archive's name.

    Returns:
      `download`, `digits`, `cifar-10-python.tar.gz` or `cifar-10-binary.tar.gz`. An archive is
      identified by its content, not by its file name.

    Raises:
      UsageError: the source is none of these.
    """
    if source in ("download", "digits"):
        return str(source)
    with _open_archive(local_path("--source", source)) as file:
        return _archive_name(file, md5s)


def load(
    source: str | os.PathLike[str], *, md5s: Mapping[str, str] = ARCHIVE_MD5S
) -> dict[str, Split]:
    """Reads the splits `train`, `validation` and `eval` of a source into memory.

    CIFAR-10 has 40,000, 10,000 and 10,000 examples in its own order. The digits are scaled from 8x8
    gray values to 32x32 with three equal channels, and have 1,257, 180 and 360 examples in a fixed
    random order.

    Args:
      source: `download`, `digits` or the path of an archive.
      md5s: the MD5 of each accepted archive, by the archive's name.

    Raises:
      UsageError: the source is unknown, the download failed, or the archive is damaged.
      ImportError: a required package is not installed; the message has the pip command.
    """
    if source == "digits":
        return _load_digits()
    path = _downloaded(md5s) if source == "download" else local_path("--source", source)
    with _open_archive(path) as file:
        name = _archive_name(file, md5s)
        file.seek(0)
        return _load_archive(file, name)


def _open_archive(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unusable(
            path, _ACCEPTED, f"Choose one of these sources ({error.strerror})."
        ) from error


def _archive_name(file: io.BufferedReader, md5s: Mapping[str, str]) -> str:
    actual = hashlib.file_digest(file, "md5").hexdigest()
    for name, md5 in md5s.items():
        if md5 == actual:
            return name
    accepted = " or ".join(f"{md5} ({name})" for name, md5 in md5s.items())
    raise _unusable(
        f"{file.name} of {file.tell()} bytes with MD5 {actual}",
        f"an archive with MD5 {accepted}",
        "The file is incomplete or a different one: download it again, or use --source=digits.",
    )


def _load_archive(file: io.BufferedReader, name: str) -> dict[str, Split]:
    """Reads an archive whose MD5 has been checked."""
    if name == PYTHON_ARCHIVE:
        wanted = {f"cifar-10-batches-py/{batch}": batch for batch in _BATCHES}
        read_batch = _read_python_batch
    else:
        wanted = {f"cifar-10-batches-bin/{batch}.bin": batch for batch in _BATCHES}
        read_batch = _read_binary_batch
    batches: dict[str, Split] = {}
    try:
        # Read the members in memory, in one pass, without extracting them to the disk.
        with tarfile.open(fileobj=file, mode="r|gz") as archive:
            for member in archive:
                if member.name in wanted and member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None  # It is None only if the member is not a file.
                    batches[wanted[member.name]] = read_batch(content.read())
        return {
            split: Split(
                np.concatenate([batches[batch].images for batch in names]),
                np.concatenate([batches[batch].labels for batch in names]),
            )
            for split, names in _BATCHES_OF_SPLIT.items()
        }
    except Exception as error:
        # What a damaged archive or pickle raises depends on where it is damaged.
        raise _unusable(
            file.name,
            f"an intact archive with the batches {', '.join(_BATCHES)}",
            f"The file is incomplete or damaged: download it again ({error!r}).",
        ) from error


class _Unpickler(pickle.Unpickler):
    """Builds arrays and bytes only: "Restricting Globals" in the documentation of `pickle`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _OF_ARRAYS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _read_python_batch(content: bytes) -> Split:
    with warnings.catch_warnings():
        # NumPy warns of arrays that Python 2 has pickled.
        warnings.simplefilter("ignore")
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    images = np.asarray(batch[b"data"], dtype=np.uint8)
    return Split(images.reshape(-1, *IMAGE_SHAPE), np.asarray(batch[b"labels"], dtype=np.int64))


def _read_binary_batch(content: bytes) -> Split:
    # A record is one label byte and 3,072 image bytes.
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + int(np.prod(IMAGE_SHAPE)))
    return Split(rows[:, 1:].reshape(-1, *IMAGE_SHAPE), rows[:, 0].astype(np.int64))


def _downloaded(md5s: Mapping[str, str]) -> Path:
    """The binary archive, which Keras downloads once, to `~/.keras/datasets`."""
    import tensorflow as tf

    try:
        return Path(
            tf.keras.utils.get_file(
                BINARY_ARCHIVE,
                _ARCHIVE_URL,
                file_hash=md5s[BINARY_ARCHIVE],
                hash_algorithm="md5",
            )
        )
    except Exception as error:  # Keras raises no class of its own.
        raise _unusable(
            "download",
            _ACCEPTED,
            "CIFAR-10 could not be downloaded: use --source=digits, or download "
            f"{_ARCHIVE_URL} on another machine and pass its path as --source ({error}).",
        ) from error


def _unusable(received: object, accepted: str, remedy: str) -> UsageError:
    return UsageError("--source", received=str(received), accepted=accepted, remedy=remedy)


def _load_digits() -> dict[str, Split]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "--source=digits needs scikit-learn. Run: pip install 'tfdist[digits]'"
        ) from error

    digits = load_digits()
    gray = np.rint(digits.images * (255 / _DIGITS_BRIGHTEST)).astype(np.uint8)
    gray = gray.repeat(_DIGITS_SCALE, axis=1).repeat(_DIGITS_SCALE, axis=2)
    images = np.repeat(gray[:, None], 3, axis=1)
    # NumPy guarantees the same stream in all versions only for RandomState.
    order = np.random.RandomState(_DIGITS_SEED).permutation(len(images))
    splits: dict[str, Split] = {}
    start = 0
    for split, size in _DIGITS_SIZES.items():
        chosen = order[start : start + size]
        splits[split] = Split(images[chosen], digits.target[chosen].astype(np.int64))
        start += size
    return splits
