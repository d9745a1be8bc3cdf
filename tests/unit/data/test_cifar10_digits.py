"""The digits in the format of CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import cifar10, records, sources
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15")


def test_the_digits_can_be_written_and_read(tmp_path: Path) -> None:
    cifar10.write(tmp_path, "digits")
    splits = sources.load("digits")
    for split, count in (("train", 1257), ("validation", 180), ("eval", 360)):
        images, labels = next(iter(cifar10.dataset(tmp_path, split, batch_size=count)))
        expected = splits[split].images.transpose(0, 2, 3, 1).astype(np.float32)
        np.testing.assert_array_equal(images, expected)
        np.testing.assert_array_equal(labels, splits[split].labels)


def test_the_records_have_the_format_of_the_estimator_tutorial(tmp_path: Path) -> None:
    sentence = cifar10.write(tmp_path, "digits")

    names = {f"{split}.tfrecords" for split in ("train", "validation", "eval")}
    assert {file.name for file in tmp_path.iterdir()} == {*names, "manifest.json"}
    for split, expected in sources.load("digits").items():
        images, labels = [], []
        for serialized in tf.data.TFRecordDataset(str(tmp_path / f"{split}.tfrecords")):
            feature = tf.train.Example.FromString(serialized.numpy()).features.feature
            assert set(feature) == {"image", "label"}
            images.append(np.frombuffer(feature["image"].bytes_list.value[0], np.uint8))
            labels.append(feature["label"].int64_list.value[0])
        np.testing.assert_array_equal(np.reshape(images, (-1, 3, 32, 32)), expected.images)
        np.testing.assert_array_equal(labels, expected.labels)

    counts = {split: cifar10.num_examples(tmp_path, split) for split in sources.SPLITS}
    assert counts == {"train": 1257, "validation": 180, "eval": 360}
    assert "wrote train.tfrecords 1257, validation.tfrecords 180, eval.tfrecords 360" in sentence
    assert sentence.endswith("(source: digits)")


def test_a_second_run_verifies_and_does_not_write(tmp_path: Path) -> None:
    cifar10.write(str(tmp_path), "digits")
    first = records.read_manifest(tmp_path)
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}

    second = cifar10.write(tmp_path, "digits")
    assert "already complete, verified by SHA-256: train.tfrecords 1257" in second
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before

    victim = tmp_path / "eval.tfrecords"
    content = bytearray(victim.read_bytes())
    content[100] ^= 1
    victim.write_bytes(content)
    with pytest.raises(UsageError, match=r"eval\.tfrecords.*Delete .*another --data_dir"):
        cifar10.write(tmp_path, "digits")

    # The remedy in the error message works.
    victim.unlink()
    (tmp_path / "manifest.json").unlink()
    cifar10.write(tmp_path, "digits")
    assert records.read_manifest(tmp_path) == first
