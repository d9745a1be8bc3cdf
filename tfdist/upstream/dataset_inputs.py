"""Finds the datasets that a dataset was derived from, the size of its batches, and what makes its
order differ between tasks.

`tf.data` has no public API for these.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import tensorflow as tf

_DIGEST_BYTES = 2**20
# The size that `digest` assumes for a string.
_STRING_BYTES = 64


def ancestors(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """All datasets that a dataset was derived from, directly or indirectly."""
    for parent in dataset._inputs():
        yield parent
        yield from ancestors(parent)


def conflict(dataset: tf.data.Dataset, own: str) -> str | None:
    """What keeps several tasks from reading a dataset in the same order, as the end of a sentence
    that begins with "a dataset that"; None if nothing is found.

    Args:
      dataset: the dataset.
      own: the end of the name of a file that this task alone writes.
    """
    for each in (dataset, *ancestors(dataset)):
        seeds = [getattr(each, name, None) for name in ("_seed", "_seed2")]
        # In a graph, a seed that is given may have no static value.
        if None not in seeds and all(tf.get_static_value(seed) == 0 for seed in seeds):
            return "shuffles without a seed"
        if getattr(each, "_deterministic", None) == "false":
            return "was created with deterministic=False or sloppy=True"
        path = tf.compat.as_text(tf.get_static_value(getattr(each, "_filename", "")) or "")
        if path and not path.endswith(own):
            return f"all tasks cache in the file {path}"
    return None


def digest(dataset: tf.data.Dataset) -> str:
    """A digest of the arrays from which a dataset is made: of the first MiB of numbers of each, and
    of the first thousands of strings after their last slash, because machines may have the same
    files in different directories.
    """
    found = 0
    for each in (dataset, *ancestors(dataset)):
        for tensor in getattr(each, "_tensors", ()):
            is_text = tensor.dtype == tf.string
            if not (is_text or tensor.dtype.is_floating or tensor.dtype.is_integer):
                continue
            if tensor.shape.rank and not tf.is_symbolic_tensor(tensor):
                item_bytes = _STRING_BYTES if is_text else tensor.dtype.size
                row_bytes = item_bytes * (tensor.shape[1:].num_elements() or 1)
                rows = tensor[: 1 + _DIGEST_BYTES // row_bytes].numpy()
                names = [text.rpartition(b"/")[2] for text in rows.ravel()] if is_text else []
                content = b"\n".join(names) if is_text else rows.tobytes()
                found = zlib.crc32(content, found)
    return f"arrays with CRC-32 {found:08x}"


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """The number of examples in the full batches of a dataset; None if it is unknown."""
    for shape in tf.nest.flatten(tf.compat.v1.data.get_output_shapes(dataset)):
        if shape.rank and shape[0] is not None:
            return int(shape[0])
    for each in (dataset, *ancestors(dataset)):
        size = getattr(each, "_batch_size", None)
        if size is not None:
            value = tf.get_static_value(size)
            return None if value is None else int(value)
    return None
