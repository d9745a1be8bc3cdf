"""Which machine reads and writes the files of a model whose variables are on several machines.

device = choose(directory, "/job:chief/…", ["/job:worker/task:0/…", "/job:worker/task:1/…"])
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from tfdist.storage.output_directory import read_text, write_text


def choose(directory: Path, device: str | None, owners: Iterable[str]) -> str | None:
    """The device whose machine reads and writes the files.

    Args:
      directory: the directory of the files; created if it does not exist.
      device: the device that can always do it; None for the device of each variable.
      owners: the devices that have variables and may read and write them themselves.

    Returns:
      None, for the device of each variable, if the servers of all owners can write in the directory
      and this process reads what they wrote; otherwise `device`.
    """
    owners = list(owners)
    if not owners:
        return device
    mark = directory / f".shared-{os.urandom(4).hex()}"
    write_text(mark, "")
    try:
        return None if all(_writes(owner, mark) for owner in owners) else device
    finally:
        mark.unlink(missing_ok=True)


def _writes(device: str, mark: Path) -> bool:
    """Whether the server of a device can write this file, which exists here."""
    with tf.device(device.replace("GPU:0", "CPU:0")):
        # Another machine may have a directory of the same name, and must get no new file in it.
        if len(tf.io.matching_files(glob.escape(str(mark))).numpy()) == 0:
            return False
        try:
            tf.io.write_file(str(mark), device)
            # The server may still be writing until it is asked for a result.
            tf.io.read_file(str(mark)).numpy()
        except tf.errors.OpError:
            return False
    return read_text(mark) == device
