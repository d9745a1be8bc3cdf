"""Fashion-MNIST as tensorflow-datasets prepares it, from small files in the published format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import prepared_datasets

pytestmark = pytest.mark.stacks("newest")

COUNTS = {"train": 5, "test": 3}

# The real builder, with local files instead of the download, and with as many examples as these.
PREPARE = f"""
import sys
from pathlib import Path
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import mnist

mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = {COUNTS["train"]}, {COUNTS["test"]}
tfds.download.DownloadManager.download_and_extract = lambda self, urls: {{
    name: str(Path(sys.argv[1], url.rpartition("/")[2]).with_suffix(""))
    for name, url in urls.items()
}}
tfds.builder("fashion_mnist").download_and_prepare()
"""

# Reads the dataset; then again, without one of its files.
LOAD = """
import os, sys
from pathlib import Path
import numpy as np
from tfdist.data import mnist
from tfdist.errors import exit_on_usage_error

splits = mnist.load("fashion_mnist")
fields = [(split, field) for split in splits for field in ("images", "labels")]
np.savez(sys.argv[1], **{f"{s}_{field}": getattr(splits[s], field) for s, field in fields})

(file,) = Path(os.environ["TFDS_DATA_DIR"]).glob("fashion_mnist/*/*-test.tfrecord*")
file.unlink()
with exit_on_usage_error():
    mnist.load("fashion_mnist")
"""


def write_published_files(directory: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes the extracted files of Fashion-MNIST; returns the images and labels of each split."""
    random = np.random.RandomState(0)
    splits = {}
    for prefix, split in (("train", "train"), ("t10k", "test")):
        images = random.randint(0, 256, (COUNTS[split], 28, 28)).astype(np.uint8)
        labels = np.arange(COUNTS[split], dtype=np.uint8)
        (directory / f"{prefix}-images-idx3-ubyte").write_bytes(bytes(16) + images.tobytes())
        (directory / f"{prefix}-labels-idx1-ubyte").write_bytes(bytes(8) + labels.tobytes())
        splits[split] = images, labels
    return splits


def test_a_prepared_dataset_is_read_and_an_incomplete_one_is_named(tmp_path: Path) -> None:
    published = write_published_files(tmp_path)
    datasets = tmp_path / "datasets"
    prepared = prepared_datasets.run(PREPARE, datasets, tmp_path)
    assert prepared.returncode == 0, prepared.stderr

    done = prepared_datasets.run(LOAD, datasets, tmp_path / "splits.npz")

    with np.load(tmp_path / "splits.npz") as saved:
        for split, (images, labels) in published.items():
            # tensorflow-datasets shuffles the examples when it prepares them.
            order = np.argsort(saved[f"{split}_labels"])
            np.testing.assert_array_equal(saved[f"{split}_labels"][order], labels)
            np.testing.assert_array_equal(saved[f"{split}_images"][order], images)
            assert saved[f"{split}_images"].dtype == np.uint8
            assert saved[f"{split}_labels"].dtype == np.int64
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tfdist: error: --data_source: received 'fashion_mnist'; accepted: ")
    assert f"{datasets}/fashion_mnist/3.0.1 is incomplete or damaged: delete it" in last
    assert "--data_source=digits" in last and "Traceback" not in done.stderr
