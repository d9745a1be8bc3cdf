"""Random crops and flips of whole batches, as for training ResNets on CIFAR-10.

    images = crop_and_flip(images, seed, crop=True, flip=True)    # uint8 to float32

TensorFlow is slow at operations on single images or pixels. The operations in this module work on a
batch and copy rows. `scripts/benchmarks/measure_input.py` measures them.
"""

from __future__ import annotations

import tensorflow as tf

PADDING = 4


def crop_and_flip(images: tf.Tensor, seed: tf.Tensor, *, crop: bool, flip: bool) -> tf.Tensor:
    """Augments each image independently; pixel values do not change.

    Args:
      images: uint8 [batch, height, width, channels]; only the batch size may be unknown.
      seed: int64 [2]; the same seed gives the same result.
      crop: pads each side by 4 black pixels and crops to the original size at a random position
        (He et al. 2015, arXiv:1512.03385, section 4.2).
      flip: flips each image left to right with probability 1/2.

    Returns:
      float32 of the same shape and range.
    """
    shape = [-1, *images.shape[1:]]
    _, height, width, channels = shape
    crop_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    batch = tf.shape(images)[0]
    if flip:
        # With three dimensions TensorFlow uses a kernel that moves whole pixels.
        mirrored = tf.reverse(tf.reshape(images, [-1, width, channels]), axis=[1])
        both = tf.concat([images, tf.reshape(mirrored, shape)], axis=0)
        which = tf.random.stateless_uniform([batch], flip_seed, 0, 2, tf.int32)
        images = tf.gather(both, which * batch + tf.range(batch))
    images = tf.ensure_shape(images, [None, *shape[1:]])
    if not crop:
        return tf.cast(images, tf.float32)
    rows = tf.reshape(images, [-1, height, width * channels])
    rows = tf.pad(rows, [[0, 0], [PADDING, PADDING], [PADDING * channels, PADDING * channels]])
    padded = tf.reshape(rows, [-1, height + 2 * PADDING, width + 2 * PADDING, channels])
    corners = tf.random.stateless_uniform([batch, 2], crop_seed, 0, 2 * PADDING + 1, tf.int32)
    cropped = tf.image.extract_glimpse(
        tf.cast(padded, tf.float32),
        [height, width],
        tf.cast(corners, tf.float32),
        centered=False,  # Offsets are corners,
        normalized=False,  # in pixels.
        noise="zero",
    )
    return tf.ensure_shape(cropped, [None, *shape[1:]])
