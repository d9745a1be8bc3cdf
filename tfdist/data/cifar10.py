"""CIFAR-10 as TFRecords: written once, then read by each task in its own shard.

    print(write("/data/cifar10", "digits"))      # a second time: verifies instead
    num_examples("/data/cifar10", "train")       # 1257, without TensorFlow
    dataset("/data/cifar10", "train", input_context, batch_size=64, shuffle=True, distort=True)

Each Example of `train.tfrecords`, `validation.tfrecords` and `eval.tfrecords` holds `image`, the
3,072 bytes of a [3, 32, 32] uint8 array, and `label`, an int64: the format of TensorFlow's CIFAR-10
Estimator tutorial (2018), so that either reads the other's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.data import records, sources
from tfdist.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf

IMAGE_SIZE = 32
PADDING = 4

# Autotuning is off (its thread delays the end of `fit`), so these are stated. A batch takes far
# less time to make than to train on: two ahead are enough.
_BATCHES_AT_ONCE = 2
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Outcome:
    """What `write` did.

    Attributes:
      data_dir: the directory of the records.
      manifest: what is in it.
      written: True when the records were written, False when they were there and verified.
    """

    data_dir: Path
    manifest: records.Manifest
    written: bool

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {entry.records}" for n, entry in self.manifest.files.items())
        done = "wrote" if self.written else "already there, verified by SHA-256:"
        return f"{self.data_dir}: {done} {counts} (source: {self.manifest.source})"


def file_name(split: str) -> str:
    """Returns the name of a split's file.

    Raises:
      UsageError: the split is not `train`, `validation` or `eval`.
    """
    if split not in sources.SPLITS:
        raise UsageError(
            "split",
            received=split,
            accepted=", ".join(sources.SPLITS),
            remedy="Name one of the splits.",
        )
    return f"{split}.tfrecords"


def write(
    data_dir: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    md5s: Mapping[str, str] = sources.ARCHIVE_MD5S,
) -> Outcome:
    """Writes the three splits and their manifest, or verifies those that are there already.

    Args:
      data_dir: the directory; created when missing.
      source: `download`, `digits` or the path of an archive, as in `sources.load`.
      md5s: the MD5 of each archive that is accepted, by the archive's name.

    Returns:
      What was done; as a string, one sentence about it.

    Raises:
      UsageError: the directory holds another source's records, or a file that does not match the
        manifest; the source cannot be read; the disk is full. Nothing is left half-written.
      ImportError: a package that this source needs is not installed; it names the pip command.
    """
    directory = Path(data_dir)
    name = sources.identify(source, md5s=md5s)
    manifest = records.read_manifest(directory)
    if manifest is None:
        splits = sources.load(source, md5s=md5s)
        files = {file_name(split): _serialized(splits[split]) for split in sources.SPLITS}
        return Outcome(directory, records.write(directory, name, files), written=True)
    if manifest.source != name:
        raise UsageError(
            "--source",
            received=name,
            accepted=f"{manifest.source}, which {directory} was written from",
            remedy="Use another --data_dir for another source.",
        )
    for split in sources.SPLITS:
        _entry(directory, manifest, split)
    records.verify(directory, manifest)
    return Outcome(directory, manifest, written=False)


def num_examples(data_dir: str | os.PathLike[str], split: str) -> int:
    """Returns how many examples a split has over all tasks, read from the manifest.

    Raises:
      UsageError: the directory has no records, or the split is unknown.
    """
    return _find(Path(data_dir), split).records


def dataset(
    data_dir: str | os.PathLike[str],
    split: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    batch_size: int,
    shuffle: bool = False,
    distort: bool = False,
    flip: bool = False,
    seed: int | None = None,
    repeat: bool = False,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Returns the batches of this task's shard of a split.

    Over all input pipelines each example comes exactly once an epoch, also where their number does
    not divide the examples: the first pipelines then have one example more. The cardinality is
    exact. A shard is held in memory (3 KB an example).

    Args:
      data_dir: the directory that `write` filled.
      split: `train`, `validation` or `eval`.
      input_context: which shard; None reads the whole split.
      batch_size: examples in a batch, which is a replica's batch (or whatever the caller's
        strategy asks of its `dataset_fn`); it is not divided here.
      shuffle: in a new order each epoch, over the whole shard.
      distort: pads each image by 4 black pixels a side and cuts 32x32 out at random (He et al.
        2015, section 4.2).
      flip: mirrors every other image, at random, left to right; wrong for digits.
      seed: makes order and distortion the same in every run, together with `tf.random.set_seed`
        where that is called; the distortion still differs between epochs and between pipelines.
      repeat: without end; then a batch may hold the end of one epoch and the start of the next, and
        all batches are full.
      drop_remainder: leaves out a last batch that is not full.

    Returns:
      `(images, labels)`: float32 [batch, 32, 32, 3], 0 to 255, and int32 [batch].

    Raises:
      UsageError: no records there, a file of another size than written, an unknown split, a batch
        size below 1, or a shard so small that it has no batch.
      tf.errors.OpError: while reading a damaged file.
    """
    import tensorflow as tf

    directory = Path(data_dir)
    entry = _find(directory, split)
    path = directory / file_name(split)
    records.check_size(path, entry)
    pipelines, pipeline = 1, 0
    if input_context is not None:
        pipelines = input_context.num_input_pipelines
        pipeline = input_context.input_pipeline_id
    examples = (entry.records - pipeline + pipelines - 1) // pipelines
    _check_batch_size(batch_size, examples if not repeat else None, drop_remainder)
    if examples < 1:
        raise UsageError(
            "input_context",
            received=f"{pipelines} input pipelines",
            accepted=f"at most {entry.records}, the examples of {path}",
            remedy="Use fewer workers or more data.",
        )

    serialized = tf.data.TFRecordDataset(str(path))
    serialized = serialized.apply(tf.data.experimental.assert_cardinality(entry.records))
    serialized = serialized.shard(pipelines, pipeline).cache()
    if shuffle:
        serialized = serialized.shuffle(examples, seed=seed, reshuffle_each_iteration=True)
    if repeat:
        serialized = serialized.repeat()
    batches = serialized.batch(batch_size, drop_remainder=drop_remainder or repeat)
    if distort or flip:
        draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        batches = tf.data.Dataset.zip((batches, draws))

    def parse(batch: tf.Tensor, draw: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = _parse(batch)
        if draw is not None:
            # The pipelines share a seed and must not share their distortions.
            draw_seed = tf.stack([draw, tf.constant(pipeline, tf.int64)])
            images = _augment(images, draw_seed, distort=distort, flip=flip)
        return tf.cast(images, tf.float32), labels

    batches = batches.map(parse, num_parallel_calls=_BATCHES_AT_ONCE)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    if input_context is not None:
        # It is sharded already; `fit` would take a shard of the shard.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.prefetch(_BATCHES_AHEAD).with_options(options)


def _parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Turns strings [batch] into uint8 [batch, 32, 32, 3] and int32 [batch]."""
    import tensorflow as tf

    features = tf.io.parse_example(
        serialized,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    # Checked before it is reshaped, which would let images of a multiple of the size pass.
    planes = tf.ensure_shape(
        tf.io.decode_raw(features["image"], tf.uint8), [None, 3 * IMAGE_SIZE * IMAGE_SIZE]
    )
    images = tf.reshape(planes, [-1, 3, IMAGE_SIZE, IMAGE_SIZE])
    return tf.transpose(images, [0, 2, 3, 1]), tf.cast(features["label"], tf.int32)


def _augment(images: tf.Tensor, seed: tf.Tensor, *, distort: bool, flip: bool) -> tf.Tensor:
    """Crops and mirrors uint8 [batch, 32, 32, 3], each image in its own way, by two index lists.

    No pixel's value changes. One vectorised gather a batch does for both.
    """
    import tensorflow as tf

    crop_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    batch = tf.shape(images)[0]
    rows = columns = tf.tile(tf.range(IMAGE_SIZE)[None], [batch, 1])
    if flip:
        mirrored = tf.random.stateless_uniform([batch, 1], flip_seed, 0, 2, tf.int32) == 1
        columns = tf.where(mirrored, IMAGE_SIZE - 1 - columns, columns)
    width = IMAGE_SIZE
    if distort:
        border = [PADDING, PADDING]
        images = tf.pad(images, [[0, 0], border, border, [0, 0]])
        width += 2 * PADDING
        corner = tf.random.stateless_uniform([2, batch, 1], crop_seed, 0, 2 * PADDING + 1, tf.int32)
        rows += corner[0]
        columns += corner[1]
    pixels = tf.reshape(images, [-1, width * width, 3])
    chosen = rows[:, :, None] * width + columns[:, None, :]
    return tf.ensure_shape(
        tf.gather(pixels, chosen, batch_dims=1), [None, IMAGE_SIZE, IMAGE_SIZE, 3]
    )


def _serialized(split: sources.Split) -> Iterator[bytes]:
    import tensorflow as tf

    for image, label in zip(split.images, split.labels, strict=True):
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # The order of a map's entries is left open otherwise, and the files are compared by hash.
        yield example.SerializeToString(deterministic=True)


def _find(directory: Path, split: str) -> records.FileEntry:
    file_name(split)
    manifest = records.read_manifest(directory)
    if manifest is None:
        raise UsageError(
            "--data_dir",
            received=str(directory),
            accepted=f"a directory with TFRecords and their {records.MANIFEST_NAME}",
            remedy=f"Write them first: tfdist data cifar10 --data_dir={directory}",
        )
    return _entry(directory, manifest, split)


def _entry(directory: Path, manifest: records.Manifest, split: str) -> records.FileEntry:
    name = file_name(split)
    if name not in manifest.files:
        raise UsageError(
            "--data_dir",
            received=f"{directory} with {', '.join(manifest.files) or 'no files'}",
            accepted=f"a directory with {name}",
            remedy=f"Write another one: tfdist data cifar10 --data_dir={directory}-cifar10",
        )
    return manifest.files[name]


def _check_batch_size(batch_size: int, examples: int | None, drop_remainder: bool) -> None:
    if batch_size < 1:
        raise UsageError(
            "batch_size",
            received=batch_size,
            accepted="a whole number from 1",
            remedy="Choose a larger batch.",
        )
    if examples is not None and drop_remainder and batch_size > examples:
        raise UsageError(
            "batch_size",
            received=batch_size,
            accepted=f"at most {examples}, the examples of this shard, with drop_remainder",
            remedy="Choose a smaller batch, fewer workers, or keep the last batch.",
        )
