"""28x28 gray images: MNIST, Fashion-MNIST, or scikit-learn's digits in the same size.

train = load("digits")["train"]                   # or load("mnist.npz")["train"]
dataset(*train, input_context, batch_size=100, shuffle=True, repeat=True)
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfdist.data import sources
from tfdist.data.own_shard import own_shard, sharded_options
from tfdist.errors import UsageError
from tfdist.process.paths import local_path

if TYPE_CHECKING:
    import tensorflow as tf

SPLITS = ("train", "test")
IMAGE_SIZE = 28
NUM_CLASSES = 10

_MNIST = "the path of Keras's mnist.npz"
_ACCEPTED = f"digits, fashion_mnist, or {_MNIST}"

# `sources` scales each of the 8x8 pixels to 4x4. Here each pixel is scaled to 3x3, and a black
# border of 2 pixels extends the 24 pixels to 28.
_SOURCES_SCALE = 4
_SCALE = 3
_BORDER = 2

# Fixed, because autotuning is off (its thread delays the end of training).
_BATCHES_AHEAD = 2


class Examples(NamedTuple):
    """Images and their labels.

    Attributes:
      images: uint8 [examples, 28, 28], black 0 to white 255.
      labels: int64 [examples], 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


def load(source: str | os.PathLike[str]) -> dict[str, Examples]:
    """Reads the splits `train` and `test` of a source into memory.

    Args:
      source: `digits` for scikit-learn's 1,797 digits: 1,437 for training, and 360 for testing,
        which are the eval split of `tfdist.data.sources`. `fashion_mnist` for Fashion-MNIST (Xiao
        et al. 2017: 60,000 and 10,000 examples), which Keras downloads on its first use to
        `~/.keras/datasets`. Or the path of the `mnist.npz` that `tf.keras.datasets.mnist`
        downloads, with the arrays `x_train`, `y_train`, `x_test` and `y_test` (LeCun et al. 1998:
        60,000 and 10,000 examples).

    Raises:
      UsageError: Fashion-MNIST could not be downloaded or read; or the file does not exist or does
        not contain these arrays.
      ImportError: a required package is not installed; the message has the pip command.
    """
    if source == "digits":
        return _load_digits()
    if source == "fashion_mnist":
        return _load_fashion_mnist()
    return _load_archive(local_path("--data_source", source))


def dataset(
    images: np.ndarray,
    labels: np.ndarray,
    input_context: tf.distribute.InputContext | None = None,
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int | None = None,
    repeat: bool = False,
) -> tf.data.Dataset:
    """The batches of this task's shard of a split.

    The input pipelines together contain each example exactly once per epoch. If the examples do not
    divide evenly, the first pipelines have one example more. The cardinality is exact. The shard is
    a constant of the graph, and therefore part of each checkpoint's `.meta` file (47 MB for all of
    MNIST's training split).

    Args:
      images: uint8 [examples, 28, 28].
      labels: integers [examples].
      input_context: selects the shard; None reads the whole split.
      batch_size: the number of examples per batch; pass the per-replica batch size.
      shuffle: shuffles the whole shard, in a new order each epoch.
      seed: makes the order reproducible, together with `tf.random.set_seed` if that is called.
      repeat: repeats the data forever. A batch may then contain the end of one epoch and the start
        of the next, and all batches are full.

    Returns:
      A dataset of `(images, labels)`: float32 [batch, 28, 28, 1], 0 to 1, and int32 [batch].

    Raises:
      UsageError: the batch size is below 1, or there are more input pipelines than examples.
    """
    import tensorflow as tf

    pipelines, pipeline = own_shard(input_context, len(images), batch_size)
    # Sharded in NumPy, so that the graph contains only this shard.
    shard = images[pipeline::pipelines], labels[pipeline::pipelines].astype(np.int32)
    examples = tf.data.Dataset.from_tensor_slices(shard)
    if shuffle:
        examples = examples.shuffle(len(shard[0]), seed=seed, reshuffle_each_iteration=True)
    if repeat:
        examples = examples.repeat()
    batches = examples.batch(batch_size, drop_remainder=repeat)

    def scale(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(images[..., tf.newaxis], tf.float32) / 255, labels

    options = sharded_options(input_context)
    return batches.map(scale).prefetch(_BATCHES_AHEAD).with_options(options)


def _load_digits() -> dict[str, Examples]:
    splits = sources.load("digits")
    parts = {"train": ("train", "validation"), "test": ("eval",)}
    return {
        split: Examples(
            np.concatenate([_resized(splits[part].images) for part in names]),
            np.concatenate([splits[part].labels for part in names]),
        )
        for split, names in parts.items()
    }


def _load_fashion_mnist() -> dict[str, Examples]:
    import tensorflow as tf

    try:
        with _one_task_at_a_time():
            splits = tf.keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # Keras raises no class of its own.
        raise _unusable(
            "fashion_mnist",
            f"digits, {_MNIST}, or fashion_mnist with a network or with intact files",
            "Use --data_source=digits, delete ~/.keras/datasets/fashion-mnist, or copy it from a "
            f"machine that has it ({error}).",
        ) from error
    return {
        split: Examples(images, labels.astype(np.int64))
        for split, (images, labels) in zip(SPLITS, splits, strict=True)
    }


@contextmanager
def _one_task_at_a_time() -> Iterator[None]:
    """Keras takes a file for complete that another task of this machine is still downloading."""
    directory = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _resized(images: np.ndarray) -> np.ndarray:
    """Resizes digits of `sources` from [examples, 3, 32, 32] to [examples, 28, 28]."""
    gray = images[:, 0, ::_SOURCES_SCALE, ::_SOURCES_SCALE]
    gray = gray.repeat(_SCALE, axis=1).repeat(_SCALE, axis=2)
    border = (_BORDER, _BORDER)
    return np.pad(gray, ((0, 0), border, border))


def _load_archive(path: Path) -> dict[str, Examples]:
    try:
        # Pickled data could run arbitrary code, and MNIST does not need it.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {split: _examples(archive, split) for split in SPLITS}
    except OSError as error:
        raise _unusable(
            path, _ACCEPTED, f"Choose one of these sources ({error.strerror or error})."
        ) from error
    except Exception as error:  # NumPy raises what its parts raise, such as zlib.error.
        raise _unusable(
            path,
            "an intact .npz archive with uint8 images x_train and x_test [examples, "
            f"{IMAGE_SIZE}, {IMAGE_SIZE}], and labels y_train and y_test [examples], integers from "
            f"0 to {NUM_CLASSES - 1}",
            f"Download mnist.npz again, or use --data_source=digits ({error}).",
        ) from error


def _examples(arrays: Mapping[str, np.ndarray], split: str) -> Examples:
    images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    if images.dtype != np.uint8 or images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE) or not len(images):
        raise ValueError(f"x_{split} {images.dtype} {images.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"y_{split} {labels.dtype} {labels.shape} for {len(images)} images")
    if not 0 <= labels.min() <= labels.max() < NUM_CLASSES:
        raise ValueError(f"y_{split} from {labels.min()} to {labels.max()}")
    return Examples(images, labels.astype(np.int64))


def _unusable(received: object, accepted: str, remedy: str) -> UsageError:
    return UsageError("--data_source", received=str(received), accepted=accepted, remedy=remedy)
