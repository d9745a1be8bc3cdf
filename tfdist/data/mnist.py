"""28x28 gray images: MNIST, Fashion-MNIST, or scikit-learn's digits in the same size.

train = load("digits")["train"]                   # or load("mnist")["train"]
dataset(*train, input_context, batch_size=100, shuffle=True, repeat=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfdist.data import sources
from tfdist.data.own_shard import own_shard, sharded_options
from tfdist.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf

SOURCES = ("digits", "mnist", "fashion_mnist")
SPLITS = ("train", "test")
IMAGE_SIZE = 28
NUM_CLASSES = 10

# `sources` scales each of the 8x8 pixels to 4x4. Here each pixel is scaled to 3x3, and a black
# border of 2 pixels extends the 24 pixels to 28.
_SOURCES_SCALE = 4
_SCALE = 3
_BORDER = 2

# Fixed, because autotuning is off (its thread delays the end of training).
_BATCHES_AHEAD = 2


#: The images, uint8 [examples, 28, 28], black 0 to white 255; and their labels, int64 [examples],
#: 0 to 9.
Examples = sources.Split


def load(source: str) -> dict[str, Examples]:
    """Reads the splits `train` and `test` of a source into memory.

    Args:
      source: `digits` for scikit-learn's 1,797 digits: 1,437 for training, and 360 for testing,
        which are the eval split of `tfdist.data.sources`. `mnist` (LeCun et al. 1998) or
        `fashion_mnist` (Xiao et al. 2017) for 60,000 and 10,000 examples, which Keras downloads on
        their first use to `~/.keras/datasets`.

    Raises:
      UsageError: the source is unknown, or could not be downloaded or read, or scikit-learn is not
        installed.
    """
    if source not in SOURCES:
        raise UsageError.choice("--data_source", source, SOURCES)
    if source == "digits":
        return _load_digits()
    found = sources.from_keras(source, "--data_source", source)
    return {split: Examples(*arrays) for split, arrays in zip(SPLITS, found, strict=True)}


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


def _resized(images: np.ndarray) -> np.ndarray:
    """Resizes digits of `sources` from [examples, 3, 32, 32] to [examples, 28, 28]."""
    gray = images[:, 0, ::_SOURCES_SCALE, ::_SOURCES_SCALE]
    gray = gray.repeat(_SCALE, axis=1).repeat(_SCALE, axis=2)
    border = (_BORDER, _BORDER)
    return np.pad(gray, ((0, 0), border, border))
