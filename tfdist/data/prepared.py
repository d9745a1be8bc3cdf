"""Datasets of tensorflow-datasets, which downloads and prepares them on their first use.

    cifar10 = load("cifar10", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", ["train"])
    cifar10["train"]["image"]    # uint8 [50000, 32, 32, 3]

The prepared files are in `~/tensorflow_datasets`, or in TFDS_DATA_DIR.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_CONNECT_SECONDS = 10

# The number of examples to read at a time.
_BATCH_SIZE = 1000


class UnavailableError(RuntimeError):
    """A dataset could not be downloaded, or its prepared files could not be read.

    Its message, one line, contains the exception.
    """


def load(name: str, url: str, splits: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
    """Reads splits of a dataset into memory; downloads and prepares the dataset before if needed.

    Args:
      name: the name of the dataset in tensorflow-datasets.
      url: one of the files that tensorflow-datasets would download.
      splits: the names of the splits.

    Returns:
      By split and by feature, an array with one row per example, in the order of the files.

    Raises:
      UnavailableError: the dataset is not prepared and could not be downloaded, or its files are
        incomplete or damaged.
      ImportError: a required package is not installed; the message has the pip command.
    """
    try:
        import tensorflow_datasets as tfds

        builder = _prepared(name, url)
    except ImportError as error:
        # tensorflow-datasets 4.9.10 needs importlib_resources but does not declare it.
        raise ImportError(
            f"{name} from tensorflow-datasets: {error}. "
            "Run: pip install tensorflow-datasets importlib_resources 'tensorflow-metadata<1.17'"
        ) from error
    except Exception as error:
        # requests, tensorflow-datasets and the disk raise various exceptions, with one remedy.
        raise UnavailableError(_in_one_line(error)) from error

    config = tfds.ReadConfig(try_autocache=False)
    result = {}
    for split in splits:
        try:
            dataset = builder.as_dataset(split=split, batch_size=_BATCH_SIZE, read_config=config)
            batches = list(tfds.as_numpy(dataset))
        except Exception as error:
            # TensorFlow's and tensorflow-datasets' exceptions for a missing or damaged file.
            raise UnavailableError(
                f"{builder.data_dir} is incomplete or damaged: delete it ({_in_one_line(error)})"
            ) from error
        result[split] = {
            feature: np.concatenate([batch[feature] for batch in batches]) for feature in batches[0]
        }
    return result


def _prepared(name: str, url: str) -> Any:
    """The `tfds.core.DatasetBuilder` of a dataset, which is prepared."""
    import requests
    import tensorflow_datasets as tfds
    from absl import logging

    # Hides the warning about the directory of a dataset that is not prepared.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        builder = tfds.builder(name)
        is_prepared = builder.is_prepared()
    finally:
        logging.set_verbosity(verbosity)
    if not is_prepared:
        # Fail fast: without a network tensorflow-datasets retries for over three minutes.
        requests.get(url, stream=True, timeout=_CONNECT_SECONDS).close()
        builder.download_and_prepare()
    return builder


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
