"""CIFAR-10 as TFRecords: written once, then read by each task in its own shard.

    print(write("/data/cifar10", "digits"))      # a second time: verifies instead
    num_examples("/data/cifar10", "train")       # 1257, without TensorFlow
    dataset("/data/cifar10", "train", input_context, batch_size=64, shuffle=True, distort=True)

Each Example of `train.tfrecords`, `validation.tfrecords` and `eval.tfrecords` holds `image`, the
3,072 bytes of a [3, 32, 32] uint8 array, and `label`, an int64: the format of TensorFlow's CIFAR-10
Estimator tutorial (2018), so that either reads the other's files: the tutorial's have no manifest,
and their records are counted. A split may be in several files, `train-00000-of-00008.tfrecords` and
so on, of which each task reads its own.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.data import memory, records, sources
from tfdist.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf

IMAGE_SIZE = 32

# Autotuning is off (its thread delays the end of `fit`), so these are stated. A batch takes far
# less time to make than to train on: two ahead are enough.
_BATCHES_AT_ONCE = 2
_BATCHES_AHEAD = 2
# Records that are parsed together, which is several times as fast as one by one.
_PARSED_AT_ONCE = 64

# All tasks of a job may be on this machine, and their shards are then the whole split.
_CACHED_SHARE = 1 / 4
# 0.4 GB. Not a matter of the machine's memory, on which the order must not depend.
_SHUFFLED = 2**17


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


def file_name(split: str, index: int = 0, files: int = 1) -> str:
    """Returns the name of a split's file, or of one of its several `files`.

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
    return f"{split}.tfrecords" if files == 1 else f"{split}-{index:05}-of-{files:05}.tfrecords"


def write(
    data_dir: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    files: int = 1,
    md5s: Mapping[str, str] = sources.ARCHIVE_MD5S,
) -> Outcome:
    """Writes the three splits and their manifest, or verifies those that are there already.

    Args:
      data_dir: the directory; created when missing.
      source: `download`, `digits` or the path of an archive, as in `sources.load`.
      files: how many a split is dealt out to, record by record. The data and their order are the
        same whatever it is; with a multiple of the tasks that read, each reads its own files alone.
      md5s: the MD5 of each archive that is accepted, by the archive's name.

    Returns:
      What was done; as a string, one sentence about it.

    Raises:
      UsageError: the directory holds another source's records or another number of files, or a
        file that does not match the manifest; the source cannot be read; the disk is full. Nothing
        is left half-written.
      ImportError: a package that this source needs is not installed; it names the pip command.
    """
    directory = Path(data_dir)
    if files < 1:
        raise UsageError(
            "files",
            received=files,
            accepted="a whole number from 1",
            remedy="Choose how many files a split is in.",
        )
    name = sources.identify(source, md5s=md5s)
    manifest = records.read_manifest(directory)
    if manifest is None:
        contents = serialized(sources.load(source, md5s=md5s), files)
        return Outcome(directory, records.write(directory, name, contents), written=True)
    if manifest.source != name:
        raise UsageError(
            "--source",
            received=name,
            accepted=f"{manifest.source}, which {directory} was written from",
            remedy="Use another --data_dir for another source.",
        )
    for split in sources.SPLITS:
        found = len(_listed(directory, manifest, split))
        if found != files:
            raise UsageError(
                "files",
                received=files,
                accepted=f"{found}, in which {directory} has its {split} split",
                remedy="Use another --data_dir for another number of files.",
            )
    records.verify(directory, manifest)
    return Outcome(directory, manifest, written=False)


def num_examples(data_dir: str | os.PathLike[str], split: str) -> int:
    """Returns how many examples a split has over all tasks, without TensorFlow.

    It is read from the manifest. Without one, in a directory with the tutorial's three files, the
    records of this split are counted, once a process.

    Raises:
      UsageError: the directory has no records, or the split is unknown.
    """
    return sum(entry.records for entry in _find(Path(data_dir), split).values())


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
    exact.

    A shard is held in memory (uint8, 3.6 KB an example) where the files of the whole split are at
    most a quarter of what is available; else its files are read again each epoch.

    Args:
      data_dir: the directory that `write`, or the tutorial's own script, filled.
      split: `train`, `validation` or `eval`.
      input_context: which shard; None reads the whole split.
      batch_size: examples in a batch, which is a replica's batch (or whatever the caller's
        strategy asks of its `dataset_fn`); it is not divided here.
      shuffle: in a new order each epoch, over the whole shard (over 131,072 examples of a larger
        one).
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

    from tfdist.data.augmentation import crop_and_flip

    files = _find(Path(data_dir), split)
    for path, entry in files.items():
        records.check_size(path, entry)
    total = sum(entry.records for entry in files.values())
    pipelines, pipeline = 1, 0
    if input_context is not None:
        pipelines = input_context.num_input_pipelines
        pipeline = input_context.input_pipeline_id
    examples = (total - pipeline + pipelines - 1) // pipelines
    _check_batch_size(batch_size, examples if not repeat else None, drop_remainder)
    if examples < 1:
        raise UsageError(
            "input_context",
            received=f"{pipelines} input pipelines",
            accepted=f"at most {total}, the examples of {data_dir}'s {split} split",
            remedy="Use fewer workers or more data.",
        )

    dataset = _read(files, pipelines, pipeline)
    dataset = dataset.batch(_PARSED_AT_ONCE).map(_parse, num_parallel_calls=_BATCHES_AT_ONCE)
    dataset = dataset.unbatch().apply(tf.data.experimental.assert_cardinality(examples))
    if sum(entry.bytes for entry in files.values()) <= memory.available() * _CACHED_SHARE:
        dataset = dataset.cache()
    if shuffle:
        dataset = dataset.shuffle(min(examples, _SHUFFLED), seed=seed)
    if repeat:
        dataset = dataset.repeat()
    dataset = dataset.batch(batch_size, drop_remainder=drop_remainder or repeat)
    parts = [dataset]
    if distort or flip:
        parts.append(tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True))

    def finish(
        batch: tuple[tf.Tensor, tf.Tensor], draw: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = batch
        if draw is None:
            return tf.cast(images, tf.float32), labels
        # The pipelines share a seed and must not share their distortions.
        draw_seed = tf.stack([draw, tf.constant(pipeline, tf.int64)])
        return crop_and_flip(images, draw_seed, crop=distort, flip=flip), labels

    dataset = tf.data.Dataset.zip(tuple(parts)).map(finish, num_parallel_calls=_BATCHES_AT_ONCE)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    # One that was made for a task is sharded already; `fit` would take a shard of the shard. By
    # files the whole could not be sharded: how many examples it has is fixed.
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.OFF if input_context else policy.DATA
    return dataset.prefetch(_BATCHES_AHEAD).with_options(options)


def _read(
    files: Mapping[Path, records.FileEntry], pipelines: int, pipeline: int
) -> tf.data.Dataset:
    """The records `pipeline::pipelines` of a split, from the files alone that have any of them.

    The split's record i is in file i % len(files), so that every n-th file, read in turn, has every
    n-th record, where n divides both the files and the pipelines.
    """
    import tensorflow as tf

    n = math.gcd(len(files), pipelines)
    own = list(files)[pipeline % n :: n]
    # In turn and not at once: threads cost more here than reading does.
    serialized = tf.data.Dataset.from_tensor_slices([str(path) for path in own]).interleave(
        tf.data.TFRecordDataset, cycle_length=len(own), block_length=1
    )
    count = sum(files[path].records for path in own)
    serialized = serialized.apply(tf.data.experimental.assert_cardinality(count))
    return serialized.shard(pipelines // n, pipeline // n)


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


def serialized(splits: Mapping[str, sources.Split], files: int = 1) -> dict[str, Iterator[bytes]]:
    """The Examples of each file of some splits, by its name: what `records.write` takes.

    Args:
      splits: the images and labels of each split.
      files: how many each split is dealt out to.
    """
    return {
        file_name(name, index, files): _serialized(split, range(index, len(split.labels), files))
        for name, split in splits.items()
        for index in range(files)
    }


def _serialized(split: sources.Split, which: range) -> Iterator[bytes]:
    import tensorflow as tf

    for index in which:
        image, label = split.images[index].tobytes(), int(split.labels[index])
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # The order of a map's entries is left open otherwise, and the files are compared by hash.
        yield example.SerializeToString(deterministic=True)


def _find(directory: Path, split: str) -> dict[Path, records.FileEntry]:
    """A split's files in their order, by the manifest, or by counting where there is none."""
    path = directory / file_name(split)
    manifest = records.read_manifest(directory)
    if manifest is not None:
        return _listed(directory, manifest, split)
    # All of them, so that what an interrupted copy or `write` has left is not taken for the data.
    names = [file_name(name) for name in sources.SPLITS]
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        some = f" without {', '.join(missing)}" if len(missing) < len(names) else ""
        raise UsageError(
            "--data_dir",
            received=f"{directory}{some}",
            accepted=f"a directory with TFRecords and their {records.MANIFEST_NAME}, or without "
            f"it with all of {', '.join(names)}",
            remedy=f"Write them first: tfdist data cifar10 --data_dir={directory}",
        )
    return {path: records.count(path)}


def _listed(
    directory: Path, manifest: records.Manifest, split: str
) -> dict[Path, records.FileEntry]:
    pattern = re.compile(rf"{split}(-\d+-of-\d+)?\.tfrecords")
    found = {
        directory / name: entry
        for name, entry in sorted(manifest.files.items())
        if pattern.fullmatch(name)
    }
    if not found:
        raise UsageError(
            "--data_dir",
            received=f"{directory} with {', '.join(manifest.files) or 'no files'}",
            accepted=f"a directory with {file_name(split)}",
            remedy=f"Write another one: tfdist data cifar10 --data_dir={directory}-cifar10",
        )
    return found


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
