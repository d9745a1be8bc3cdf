"""Writes CIFAR-10 as TFRecord files, and reads each task's shard of them.

    print(write("/data/cifar10", "digits"))      # verifies existing files
    num_examples("/data/cifar10", "train")       # 1257, without TensorFlow
    dataset("/data/cifar10", "train", input_context, batch_size=64, shuffle=True, distort=True)

Each Example of `train.tfrecords`, `validation.tfrecords` and `eval.tfrecords` contains `image`, the
3,072 bytes of a [3, 32, 32] uint8 array, and `label`, an int64. This is the format of TensorFlow's
CIFAR-10 Estimator tutorial (2018), so each can read the other's files. The tutorial's files have no
manifest, so their records are counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.data import records, sources
from tfdist.data.cifar10_examples import parse, serialized_examples
from tfdist.data.own_shard import own_shard, sharded_options
from tfdist.errors import UsageError
from tfdist.process.paths import local_path

if TYPE_CHECKING:
    import tensorflow as tf

# Fixed, because autotuning is off (its thread delays the end of `fit`). Reading a batch takes far
# less time than training on it, so two are enough.
_PARALLEL_BATCHES = 2
_PREFETCHED_BATCHES = 2
_PARSE_BATCH_SIZE = 64

# 0.4 GB. A constant, because the shuffle order must not depend on the machine's memory.
_SHUFFLE_BUFFER_SIZE = 2**17


def file_name(split: str) -> str:
    """Returns the name of a split's file.

    Raises:
      UsageError: the split is not `train`, `validation` or `eval`.
    """
    if split not in sources.SPLITS:
        raise UsageError.choice("split", split, sources.SPLITS)
    return f"{split}.tfrecords"


def write(data_dir: str | os.PathLike[str], source: str) -> str:
    """Writes the three splits and their manifest, or verifies existing ones.

    Args:
      data_dir: the directory; created if it is missing.
      source: `digits` or `download`, as in `sources.load`.

    Returns:
      What was done, as a sentence.

    Raises:
      UsageError: the directory contains another source's records, or a file that does not match
        the manifest; or the source is unknown or cannot be read; or the disk is full. No partial
        files are left.
    """
    directory = local_path("--data_dir", data_dir)
    manifest = records.read_manifest(directory)
    if manifest is None:
        contents = serialized(sources.load(source))
        return _sentence(directory, "wrote", records.write(directory, source, contents))
    if manifest.source != source:
        raise UsageError(
            "--source",
            received=source,
            accepted=f"{manifest.source}, the source of the records in {directory}",
            remedy="Use another --data_dir for another source.",
        )
    for split in sources.SPLITS:
        _find(directory, split)  # Raises an error if the manifest does not have it.
    records.verify(directory, manifest)
    return _sentence(directory, "already complete, verified by SHA-256:", manifest)


def _sentence(directory: Path, action: str, manifest: records.Manifest) -> str:
    counts = ", ".join(f"{name} {entry.records}" for name, entry in manifest.files.items())
    return f"{directory}: {action} {counts} (source: {manifest.source})"


def num_examples(data_dir: str | os.PathLike[str], split: str) -> int:
    """Returns the number of examples of a whole split, without importing TensorFlow.

    Reads the number from the manifest. In a directory with the tutorial's three files and no
    manifest, counts the records of the split.

    Raises:
      UsageError: the directory has no records, or the split is unknown.
    """
    return _find(local_path("--data_dir", data_dir), split)[1].records


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
) -> tf.data.Dataset:
    """The batches of this task's shard of a split.

    The input pipelines together contain each example exactly once per epoch. If the examples do not
    divide evenly, the first pipelines have one example more. The cardinality is exact.

    The shard is cached in memory (uint8, 3.6 KB per example).

    Args:
      data_dir: the directory that `write` or the tutorial's script has written.
      split: `train`, `validation` or `eval`.
      input_context: selects the shard; None reads the whole split.
      batch_size: the number of examples per batch; pass the per-replica batch size, or the size
        that your strategy expects from its `dataset_fn`.
      shuffle: shuffles the shard in a new order each epoch, with a buffer of at most 131,072
        examples.
      distort: pads each side of an image by 4 black pixels and crops 32x32 at a random position
        (He et al. 2015, section 4.2).
      flip: flips each image left to right with probability 1/2; wrong for digits.
      seed: makes the order and the distortions reproducible, together with `tf.random.set_seed` if
        that is called. Distortions still differ between epochs and between pipelines.
      repeat: repeats the data forever. A batch may then contain the end of one epoch and the start
        of the next, and all batches are full.

    Returns:
      A dataset of `(images, labels)`: float32 [batch, 32, 32, 3], 0 to 255, and int32 [batch].

    Raises:
      UsageError: the directory has no records, a file has a different size than in the manifest,
        the split is unknown, the batch size is below 1, or there are more input pipelines than
        examples.
      tf.errors.OpError: a file is damaged; raised while reading.
    """
    import tensorflow as tf

    from tfdist.data.augmentation import crop_and_flip

    path, entry = _find(local_path("--data_dir", data_dir), split)
    records.check_size(path, entry)
    pipelines, pipeline = own_shard(input_context, entry.records, batch_size)
    examples = (entry.records - pipeline + pipelines - 1) // pipelines
    dataset = _read(path, pipelines, pipeline)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(examples)).cache()
    if shuffle:
        dataset = dataset.shuffle(min(examples, _SHUFFLE_BUFFER_SIZE), seed=seed)
    if repeat:
        dataset = dataset.repeat()
    dataset = dataset.batch(batch_size, drop_remainder=repeat)
    parts = [dataset]
    if distort or flip:
        parts.append(tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True))

    def finish(
        batch: tuple[tf.Tensor, tf.Tensor], draw: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = batch
        if draw is None:
            return tf.cast(images, tf.float32), labels
        # All pipelines have the same seed, but need different distortions.
        draw_seed = tf.stack([draw, tf.constant(pipeline, tf.int64)])
        return crop_and_flip(images, draw_seed, crop=distort, flip=flip), labels

    dataset = tf.data.Dataset.zip(tuple(parts)).map(finish, num_parallel_calls=_PARALLEL_BATCHES)
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(sharded_options(input_context))


def _read(path: Path, pipelines: int, pipeline: int) -> tf.data.Dataset:
    """The examples `pipeline::pipelines` of a file."""
    import tensorflow as tf

    serialized = tf.data.TFRecordDataset(str(path)).enumerate().shard(pipelines, pipeline)

    def parse_batch(numbers: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # An error names the file and the record.
        places = tf.strings.as_string(numbers)
        return parse(batch, tf.strings.join([str(path), ", record ", places]))

    # Parsing records in batches is several times as fast as parsing single ones.
    batches = serialized.batch(_PARSE_BATCH_SIZE)
    return batches.map(parse_batch, num_parallel_calls=_PARALLEL_BATCHES).unbatch()


def serialized(splits: Mapping[str, sources.Split]) -> dict[str, Iterator[bytes]]:
    """The serialized Examples of each split, by the name of its file, for `records.write`."""
    return {file_name(name): serialized_examples(split) for name, split in splits.items()}


def _find(directory: Path, split: str) -> tuple[Path, records.FileEntry]:
    """A split's file, from the manifest, or by counting records if there is none."""
    path = directory / file_name(split)
    manifest = records.read_manifest(directory)
    if manifest is None and path.is_file():
        return path, records.count(path)
    if manifest is not None and path.name in manifest.files:
        return path, manifest.files[path.name]
    found = f" with {', '.join(manifest.files) or 'no files'}" if manifest else ""
    other = f"{directory}-cifar10" if manifest else directory
    raise UsageError(
        "--data_dir",
        received=f"{directory}{found}",
        accepted=f"a directory with {path.name}",
        remedy=f"Write one: tfdist data cifar10 --data_dir={other}",
    )
