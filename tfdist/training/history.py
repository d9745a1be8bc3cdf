"""Completes the history that `fit` returns with the epochs of earlier runs of the same job.

A resumed job trains only the epochs that are left, and a complete one trains none. Keras's history
would have only these.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tfdist.storage import output_directory


def add_earlier_epochs(history: Any, metrics: Path, *, epochs: int) -> None:
    """Adds the epochs of earlier runs before those of this one.

    Args:
      history: the `History` of Keras, after the training.
      metrics: the metrics log of the job.
      epochs: the number of epochs that earlier runs have completed.
    """
    records = [
        record
        for record in output_directory.read_json_lines(metrics)
        if isinstance(epoch := record.get("epoch"), int) and epoch <= epochs
    ]
    values: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            if name not in output_directory.NO_METRICS:
                values.setdefault(name, []).append(_number(value))
    for name, own in history.history.items():
        values.setdefault(name, []).extend(own)
    history.history.update(values)
    history.epoch[:0] = [record["epoch"] - 1 for record in records]


def _number(value: Any) -> Any:
    """A value of the metrics log, where null stands for a value that is not finite."""
    if isinstance(value, list):
        return [_number(element) for element in value]
    return math.nan if value is None else value
