"""The digits in the format of CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfdist.data import cifar10, sources

pytestmark = pytest.mark.stacks("2.15")


def test_the_digits_can_be_written_and_read(tmp_path: Path) -> None:
    assert cifar10.write(tmp_path, "digits").endswith("(source: digits)")
    splits = sources.load("digits")
    for split, count in (("train", 1257), ("validation", 180), ("eval", 360)):
        assert cifar10.num_examples(tmp_path, split) == count
        images, labels = next(iter(cifar10.dataset(tmp_path, split, batch_size=count)))
        expected = splits[split].images.transpose(0, 2, 3, 1).astype(np.float32)
        np.testing.assert_array_equal(images, expected)
        np.testing.assert_array_equal(labels, splits[split].labels)
