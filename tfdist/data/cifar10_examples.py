"""One Example of the CIFAR-10 records: its encoding, and its parsing with checks.

images, labels = parse(serialized, names)          # in a graph; an error has the name of the record
records = serialized_examples(split)               # bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.data import sources

if TYPE_CHECKING:
    import tensorflow as tf

#: Rows and columns of an image.
IMAGE_SIZE = 32


def parse(serialized: tf.Tensor, names: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses strings [batch] to uint8 [batch, 32, 32, 3] and int32 [batch].

    Args:
      serialized: the records.
      names: their names in an error.
    """
    import tensorflow as tf

    # The tag of an Example's only field; the error of `parse_example` does not name the record.
    first = tf.strings.substr(serialized, 0, 1)
    is_example = tf.logical_or(tf.equal(first, b"\n"), tf.equal(first, b""))
    serialized = _checked(is_example, serialized, names, "the record is no Example")
    features = tf.io.parse_example(
        serialized,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
        example_names=names,
    )
    image, label = features["image"], features["label"]
    size = 3 * IMAGE_SIZE * IMAGE_SIZE
    # An image of a multiple of the size would become several; a larger label, another one.
    has_size = tf.equal(tf.strings.length(image), size)
    image = _checked(has_size, image, names, f"the image does not have {size} bytes")
    is_label = (label >= 0) & (label <= tf.int32.max)
    label = _checked(is_label, label, names, f"the label is not from 0 to {tf.int32.max}")
    planes = tf.ensure_shape(tf.io.decode_raw(image, tf.uint8), [None, size])
    images = tf.reshape(planes, [-1, 3, IMAGE_SIZE, IMAGE_SIZE])
    # TensorFlow 2.16 and newer log an error about oneDNN when they transpose integers.
    images = tf.stack(tf.unstack(images, axis=1), axis=-1)
    return images, tf.cast(label, tf.int32)


def _checked(conditions: tf.Tensor, values: tf.Tensor, names: tf.Tensor, problem: str) -> tf.Tensor:
    """Returns the values; if a condition is false, the graph fails with the first one's name."""
    import tensorflow as tf

    wrong = tf.boolean_mask(names, tf.logical_not(conditions))
    check = tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [problem, wrong[:1]])
    with tf.control_dependencies([check]):
        return tf.identity(values)


def serialized_examples(split: sources.Split) -> Iterator[bytes]:
    """The serialized Examples of the images of a split."""
    import tensorflow as tf

    for image, label in zip(split.images, split.labels, strict=True):
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # By default the order of a map's entries is undefined, but the files are hashed.
        yield example.SerializeToString(deterministic=True)
