"""Loads images in CIFAR-10's format: CIFAR-10 itself, or scikit-learn's digits.

    load("digits")["train"]          # Split(images [1257, 3, 32, 32], labels [1257])
    from_keras("mnist", "--data_source", "mnist")    # any dataset that Keras downloads

Both sources have the same three splits. CIFAR-10's fifth training batch is the validation split.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from tfdist.errors import UsageError

SOURCES = ("digits", "download")
SPLITS = ("train", "validation", "eval")
IMAGE_SHAPE = (3, 32, 32)
NUM_CLASSES = 10

# The examples of CIFAR-10's first four batches.
_TRAIN_SIZE = 40_000

# Where the training and the validation split end.
_DIGITS_ENDS = (1257, 1437)
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


def load(source: str) -> dict[str, Split]:
    """Reads the splits `train`, `validation` and `eval` of a source into memory.

    CIFAR-10 has 40,000, 10,000 and 10,000 examples in its own order. The digits are scaled from 8x8
    gray values to 32x32 with three equal channels, and have 1,257, 180 and 360 examples in a fixed
    random order.

    Args:
      source: `digits`, or `download` for CIFAR-10.

    Raises:
      UsageError: the source is unknown, the download failed, or scikit-learn is not installed.
    """
    if source not in SOURCES:
        raise UsageError.choice("--source", source, SOURCES)
    return _load_digits() if source == "digits" else _load_cifar10()


def from_keras(name: str, flag: str, source: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The training and the test split of a dataset, which Keras downloads on its first use.

    Keras has the files in `~/.keras/datasets`, and knows their checksums.

    Args:
      name: a module of `tf.keras.datasets`.
      flag: the flag that asks for it, for the error.
      source: the flag's value.

    Returns:
      The images of each split, uint8, and the labels, int64 [examples].

    Raises:
      UsageError: the dataset could not be downloaded or read.
    """
    import tensorflow as tf

    try:
        with _one_task_at_a_time():
            splits = getattr(tf.keras.datasets, name).load_data()
    except Exception as error:  # Keras raises no class of its own.
        raise UsageError(
            flag,
            received=source,
            accepted=f"digits, or {source} with a network or with intact files",
            remedy=f"Use {flag}=digits, delete the files of {name} in ~/.keras/datasets, or copy "
            f"them from a machine that has them ({error}).",
        ) from error
    return [(images, labels.ravel().astype(np.int64)) for images, labels in splits]


@contextmanager
def _one_task_at_a_time() -> Iterator[None]:
    """Keras takes a file for complete that another task of this machine is still downloading."""
    directory = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _load_cifar10() -> dict[str, Split]:
    (images, labels), evaluation = from_keras("cifar10", "--source", "download")
    splits = {
        "train": (images[:_TRAIN_SIZE], labels[:_TRAIN_SIZE]),
        "validation": (images[_TRAIN_SIZE:], labels[_TRAIN_SIZE:]),
        "eval": evaluation,
    }
    return {name: Split(_planes(images), labels) for name, (images, labels) in splits.items()}


def _planes(images: np.ndarray) -> np.ndarray:
    """The images with their channels first, wherever Keras's `image_data_format` has them."""
    return images if images.shape[1:] == IMAGE_SHAPE else images.transpose(0, 3, 1, 2)


def _load_digits() -> dict[str, Split]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            "scikit-learn",
            received=None,
            accepted="an installed package, for the digits",
            remedy="Run: pip install 'tfdist[digits]'.",
        ) from error

    digits = load_digits()
    gray = np.rint(digits.images * (255 / _DIGITS_BRIGHTEST)).astype(np.uint8)
    gray = gray.repeat(_DIGITS_SCALE, axis=1).repeat(_DIGITS_SCALE, axis=2)
    images = np.repeat(gray[:, None], 3, axis=1)
    # NumPy guarantees the same stream in all versions only for RandomState.
    order = np.random.RandomState(_DIGITS_SEED).permutation(len(images))
    parts = zip(SPLITS, np.split(order, _DIGITS_ENDS), strict=True)
    labels = digits.target.astype(np.int64)
    return {split: Split(images[chosen], labels[chosen]) for split, chosen in parts}
