"""Fashion-MNIST as Keras keeps it, from small files in the published format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.support import downloads

pytestmark = pytest.mark.stacks("newest")

COUNTS = {"train": 5, "test": 3}

# Reads the dataset; then again, with a damaged file.
LOAD = """
import sys
from pathlib import Path
import numpy as np
from tfdist.data import mnist
from tfdist.errors import exit_on_usage_error

splits = mnist.load("fashion_mnist")
fields = [(split, field) for split in splits for field in ("images", "labels")]
np.savez(sys.argv[1], **{f"{s}_{field}": getattr(splits[s], field) for s, field in fields})

file = Path(sys.argv[2])
file.write_bytes(file.read_bytes()[:-10])
with exit_on_usage_error():
    mnist.load("fashion_mnist")
"""


def write_published_files(directory: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes the files of Fashion-MNIST; returns the images and labels of each split."""
    directory.mkdir(parents=True)
    random = np.random.RandomState(0)
    splits = {}
    for prefix, split in (("train", "train"), ("t10k", "test")):
        images = random.randint(0, 256, (COUNTS[split], 28, 28)).astype(np.uint8)
        labels = np.arange(COUNTS[split], dtype=np.uint8)
        for name, content in (
            (f"{prefix}-images-idx3-ubyte.gz", bytes(16) + images.tobytes()),
            (f"{prefix}-labels-idx1-ubyte.gz", bytes(8) + labels.tobytes()),
        ):
            (directory / name).write_bytes(gzip.compress(content))
        splits[split] = images, labels
    return splits


def test_the_files_of_keras_are_read_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / ".keras" / "datasets" / "fashion-mnist"
    published = write_published_files(directory)
    saved = tmp_path / "splits.npz"

    done = downloads.run(LOAD, tmp_path, str(saved), str(directory / "t10k-images-idx3-ubyte.gz"))

    with np.load(saved) as arrays:
        for split, (images, labels) in published.items():
            np.testing.assert_array_equal(arrays[f"{split}_labels"], labels)
            np.testing.assert_array_equal(arrays[f"{split}_images"], images)
            assert arrays[f"{split}_images"].dtype == np.uint8
            assert arrays[f"{split}_labels"].dtype == np.int64
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tfdist: error: --data_source: received 'fashion_mnist'; accepted: ")
    assert "delete the files of fashion_mnist in ~/.keras/datasets" in last
    assert "--data_source=digits" in last and "Traceback" not in done.stderr
