"""The logs of a training: its metrics by epoch, those of the evaluator, its starts.

run = Run.of("/shared/run1")
steps, losses = run.curve("val_loss", "step")
run.restarts("step")                           # [626.0]
"""

from __future__ import annotations

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

    def curve(self, name: str, axis: Axis) -> tuple[list[float], list[float]]:
        """The places and the values of a column of `metrics.jsonl`, without those not finite."""
        return self._points(self.epochs, name, axis)

    def evaluation(self, name: str, axis: Axis) -> tuple[list[float], list[float]]:
        """The same of `eval_metrics.jsonl`."""
        return self._points(self.evaluations, name, axis)

    def restarts(self, axis: Axis) -> list[float]:
        """Where the training was started again."""
        starts = [event for event in self.events if event.get("event") == events.START][1:]
        places = (self._place(start, axis) for start in starts)
        return [place for place in places if place is not None]

    def _points(
        self, records: Iterable[Mapping[str, Any]], name: str, axis: Axis
    ) -> tuple[list[float], list[float]]:
        points = [
            (place, float(record[name]))
            for record in records
            if _is_number(record.get(name)) and (place := self._place(record, axis)) is not None
        ]
        return [place for place, _ in points], [value for _, value in points]

    def _place(self, record: Mapping[str, Any], axis: Axis) -> float | None:
        if axis == "time":
            time, times = record.get("time"), self.times
            return (time - min(times)) / 60 if _is_number(time) and times else None
        step = record.get("step", record.get("global_step"))
        if axis == "step":
            return float(step) if _is_number(step) else self._between("epoch", "step", record)
        if _is_number(step) and "event" in record:
            return self._between("step", "epoch", record)
        epoch = record.get("epoch")
        return float(epoch) if _is_number(epoch) else None

    def _between(self, known: str, wanted: str, record: Mapping[str, Any]) -> float | None:
        """A column that a record lacks, by another one and the lines of `metrics.jsonl`."""
        pairs = [
            (line[known], line[wanted])
            for line in self.epochs
            if _is_number(line.get(known)) and _is_number(line.get(wanted))
        ]
        value = record.get(known)
        if not pairs or not _is_number(value):
            return None
        places, values = zip((0, 0), *pairs, strict=True)
        return float(np.interp(value, places, values))

    @property
    def times(self) -> list[float]:
        """When something was logged, in seconds since 1970."""
        records = (*self.events, *self.epochs)
        return [record["time"] for record in records if _is_number(record.get("time"))]


def _is_number(value: Any) -> TypeGuard[float]:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and bool(np.isfinite(value))
