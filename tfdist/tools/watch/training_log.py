"""Reads the logs of a training: metrics per epoch, evaluations, and starts.

run = Run.of("/shared/run1")
steps, losses = run.curve(run.epochs, "val_loss", "step")
run.restarts("step")                           # [626.0]
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np

from tfdist.errors import UsageError
from tfdist.storage.output_directory import NO_METRICS, OutputDirectory, read_json_lines
from tfdist.training.records import events

#: What a curve is drawn over; `time` is in minutes since the first start.
Axis = Literal["epoch", "step", "time"]
SPEED = "examples_per_second"
_VALIDATION = "val_"


@dataclass(frozen=True)
class Run:
    """What a training has logged.

    Attributes:
      path: its output directory.
      epochs: the lines of `metrics.jsonl`, one per epoch; of Estimators, one per 100 steps.
      evaluations: the lines of `eval_metrics.jsonl`.
      events: the lines of `events.jsonl`.
    """

    path: Path
    epochs: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, output_dir: str | os.PathLike[str]) -> Run:
        """Reads the logs; a line that is being written is left out.

        Raises:
          UsageError: the directory has no metrics.
        """
        output = OutputDirectory(output_dir)
        epochs, evaluations = map(read_json_lines, (output.metrics, output.eval_metrics))
        if not epochs and not evaluations:
            raise UsageError(
                "OUTPUT_DIR",
                received=os.fspath(output_dir),
                accepted=f"a directory with metrics in {output.metrics.name}",
                remedy="Give the output directory of a training that has ended an epoch.",
            )
        return cls(output.path, epochs, evaluations, events.read(output))

    @property
    def axis(self) -> Axis:
        """The default x axis: epochs; steps for an Estimator, which has no epochs."""
        return "epoch" if any("epoch" in record for record in self.epochs) else "step"

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, the loss first, without those of the validation."""
        names = dict.fromkeys(
            name.removeprefix(_VALIDATION)
            for record in (*self.epochs, *self.evaluations)
            for name, value in record.items()
            if name not in (*NO_METRICS, SPEED) and _is_number(value)
        )
        return sorted(names, key=lambda name: name != "loss")

    @property
    def times(self) -> list[float]:
        """The times of all events and epochs, in seconds since 1970."""
        found = (_number(record, "time") for record in (*self.events, *self.epochs))
        return list(filter(math.isfinite, found))

    def restarts(self, axis: Axis) -> list[float]:
        """The x values at which the training was started again."""
        starts = [event for event in self.events if event.get("event") == events.START][1:]
        return list(filter(math.isfinite, (self._place(start, axis) for start in starts)))

    def curve(
        self, records: Iterable[Mapping[str, Any]], name: str, axis: Axis
    ) -> tuple[list[float], list[float]]:
        """The places and the values of a column of records, without those that are not finite.

        Args:
          records: `epochs` or `evaluations`.
          name: the name of the column.
          axis: what the places are on.
        """
        points = [(self._place(record, axis), _number(record, name)) for record in records]
        finite = [point for point in points if all(map(math.isfinite, point))]
        return [place for place, _ in finite], [value for _, value in finite]

    def _place(self, record: Mapping[str, Any], axis: Axis) -> float:
        """Where a record is; NaN if that is not known."""
        if axis == "time":
            return (_number(record, "time") - min(self.times, default=math.nan)) / 60
        if axis == "epoch":
            # The epochs of an event are those that are complete.
            by_step = "event" in record
            return self._between("step", axis, record) if by_step else _number(record, axis)
        step = _number(record, "step", "global_step")
        return step if math.isfinite(step) else self._between("epoch", axis, record)

    def _between(self, known: str, wanted: str, record: Mapping[str, Any]) -> float:
        """A column that a record lacks, by another one and the lines of `metrics.jsonl`; or NaN."""
        pairs = [(_number(line, known), _number(line, wanted)) for line in self.epochs]
        finite = [pair for pair in pairs if all(map(math.isfinite, pair))]
        if not finite:
            return math.nan
        places, values = zip((0.0, 0.0), *finite, strict=True)
        return float(np.interp(_number(record, known), places, values))


def _number(record: Mapping[str, Any], *names: str) -> float:
    """The first of these columns that is a finite number; NaN if none is."""
    values = (record.get(name) for name in names)
    return next((float(value) for value in values if _is_number(value)), math.nan)


def _is_number(value: Any) -> TypeGuard[float]:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)
