"""Which machine reads and writes the files of a model whose variables are on several machines.

device = choose(directory, "/job:chief/…", ["/job:worker/task:0/…", "/job:worker/task:1/…"])
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf


def choose(directory: Path, device: str | None, owners: Iterable[str]) -> str | None:
    """The device whose machine reads and writes the files.

    Args:
      directory: the directory of the files; created if it does not exist.
      device: the device that can always do it; None for the device of each variable.
      owners: the devices that have variables and may read and write them themselves.

    Returns:
      None, for the device of each variable, if the machines of all owners have the directory;
      otherwise `device`.
    """
    owners = list(owners)
    if not owners:
        return device
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".shared-") as mark:
        pattern = glob.escape(mark.name)
        return None if all(_finds(owner, pattern) for owner in owners) else device


def _finds(device: str, pattern: str) -> bool:
    """Whether the machine of a device has a file of this name."""
    with tf.device(device.replace("GPU:0", "CPU:0")):
        return len(tf.io.matching_files(pattern).numpy()) > 0
