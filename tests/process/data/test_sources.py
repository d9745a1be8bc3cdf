"""Sources: CIFAR-10 as Keras returns it, a refused connection, the digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import downloads
from tfdist.data import sources
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15")


def published(count: int, channels_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images whose first pixels are their numbers, modulo 251, and their labels."""
    images = np.zeros((count, 3, 32, 32), np.uint8)
    images[:, 0, 0, 1] = np.arange(count) % 251
    labels = (np.arange(count) % 10).astype(np.uint8)[:, None]
    return images if channels_first else images.transpose(0, 2, 3, 1), labels


@pytest.mark.parametrize("channels_first", [False, True])
def test_the_fifth_batch_of_cifar10_is_the_validation_split(
    monkeypatch: pytest.MonkeyPatch, channels_first: bool
) -> None:
    import tensorflow as tf

    def load_data() -> Any:
        return published(50_000, channels_first), published(10_000, channels_first)

    monkeypatch.setattr(tf.keras.datasets.cifar10, "load_data", load_data)
    splits = sources.load("download")
    numbers = np.arange(50_000)
    expected = {"train": numbers[:40_000], "validation": numbers[40_000:], "eval": numbers[:10_000]}
    assert list(splits) == list(expected)
    for split, (images, labels) in splits.items():
        assert images.dtype == np.uint8 and labels.dtype == np.int64
        assert images.shape == (len(expected[split]), 3, 32, 32)
        np.testing.assert_array_equal(images[:, 0, 0, 1], expected[split] % 251)
        np.testing.assert_array_equal(labels, expected[split] % 10)


def test_an_unknown_source_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"--source: received 'cifar100'.*digits, download"):
        sources.load("cifar100")


def test_the_split_of_the_digits_never_changes() -> None:
    from sklearn.datasets import load_digits

    splits = sources.load("digits")
    sizes = {split: len(content.labels) for split, content in splits.items()}
    assert sizes == {"train": 1257, "validation": 180, "eval": 360}

    # Every digit of scikit-learn is in exactly one split, with its own label.
    digits = load_digits()
    expected = sorted(
        (np.rint(image * 255 / 16).astype(np.uint8).tobytes(), int(label))
        for image, label in zip(digits.images, digits.target, strict=True)
    )
    found = []
    for content in splits.values():
        for image, label in zip(content.images, content.labels, strict=True):
            small = image[0, ::4, ::4]
            np.testing.assert_array_equal(
                image, np.broadcast_to(np.kron(small, np.ones((4, 4))), (3, 32, 32))
            )
            found.append((small.tobytes(), int(label)))
    assert sorted(found) == expected
    assert max(content.images.max() for content in splits.values()) == 255
    # The order is fixed: another order would silently move test images into the training split.
    assert splits["train"].labels[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]


DOWNLOAD = """
from tfdist.data import sources
from tfdist.errors import exit_on_usage_error

with exit_on_usage_error():
    sources.load("download")
"""


def test_a_failed_download_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    done = downloads.run(DOWNLOAD, tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tfdist: error: --source: received 'download'")
    assert "--source=digits" in last and "the files of cifar10 in ~/.keras/datasets" in last
