"""Exports a model while it trains: whole, for TensorFlow Serving, and the rows that have changed.

    exports = Exports(state, model, output, writer)
    exports.saved(1200, {"val_auc": 0.71})      # after each checkpoint, in every task
    exports.evicted({"users": ids})             # when the training goes on

`export/1200/` is the model after 1,200 updates. `deltas/1300/` has the rows of dynamic tables that
have changed since the export or the delta before; see `tfdist.layers.apply_deltas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdist.coordination.liveness import activity
from tfdist.errors import UsageError, log
from tfdist.layers import dynamic_embedding, row_files
from tfdist.storage import export, output_directory
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.scalars import scalars
from tfdist.training.state import TrainingState


class Exports:
    """The exports of a training.

    Args:
      state: knows the strategy and the flags.
      model: the model.
      output: the output directory.
      writer: the arguments of `export.export` that say who writes.
    """

    def __init__(
        self, state: TrainingState, model: Any, output: OutputDirectory, writer: Mapping[str, Any]
    ) -> None:
        self._state, self._model, self._output, self._writer = state, model, output, writer
        self._flags = state.role.flags
        self._exported = self._changed = state.steps
        # By table, its clock at the last export, and the ids that have lost their rows since.
        # Empty before the first one of this process, whose parts must not depend on an earlier one.
        self._clocks: dict[str, int] = {}
        self._evicted: dict[str, set[int]] = {}

    def evicted(self, ids_of_tables: Mapping[str, np.ndarray]) -> None:
        """Notes the ids that have just lost their rows, by table, for the next delta."""
        for name, ids in ids_of_tables.items():
            self._evicted.setdefault(name, set()).update(ids.tolist())

    def saved(self, number: int, logs: Mapping[str, Any] | None) -> None:
        """Exports what is due. Every training task must call it after each checkpoint.

        Args:
          number: the number of updates.
          logs: the metrics of an epoch that has just ended; None within an epoch.

        Raises:
          UsageError: `--export_best` names no metric of this training.
          OutputError: an export could not be written.
        """
        tables = dynamic_embedding.of_model(self._model)
        has_changes = bool(tables) and self._is_due(self._flags.delta_steps, self._changed, number)
        is_whole = self._is_due(self._flags.export_steps, self._exported, number)
        if self._is_best(logs) or is_whole or (has_changes and not self._clocks):
            self._export(number, logs)
        elif has_changes and self._state.is_chief:
            self._write_delta(tables, number)
        else:
            return
        self._changed = number
        self._clocks = {table.name: table.calls() for table in tables}
        self._evicted = {}

    def _export(self, number: int, logs: Mapping[str, Any] | None) -> None:
        target = self._output.exports / str(number)
        facts = {"step": number, "metrics": scalars(logs)}
        with (
            self._state.reporter.activity.doing(activity.EXPORTING),
            self._state.strategy.checkpointing.save_scope(self._model),
        ):
            export.export(self._model, self._output, target=target, facts=facts, **self._writer)
        self._exported = number
        if self._state.is_chief:
            self._remove_old()

    def _write_delta(self, tables: list[Any], number: int) -> None:
        target = self._output.deltas / str(number)
        with output_directory.replacing_directory(target) as temporary:
            row_files.write(
                temporary / target.name,
                {table.name: table.rows(since=self._clocks[table.name]) for table in tables},
                self._evicted,
                base=self._changed,
            )

    def _is_due(self, steps: int | None, last: int, number: int) -> bool:
        return steps is not None and number // steps > last // steps

    def _is_best(self, logs: Mapping[str, Any] | None) -> bool:
        if self._flags.best_metric is None or logs is None:
            return False
        sign, name = self._flags.best_metric
        found = scalars(logs)
        if name not in found:
            raise UsageError(
                "--export_best",
                received=name,
                accepted=f"a metric of this training: {', '.join(found)}",
                remedy="Correct the name, or leave the flag out.",
            )
        is_best = sign * found[name] > max(self._values().values(), default=-np.inf)
        # The chief decides: another task may see its files later.
        return bool(self._state.strategy.gather(int(is_best))[0])

    def _values(self) -> dict[int, float]:
        """The metric of `--export_best`, such that more is better, of each export that has it."""
        sign, name = self._flags.best_metric or (0, "")
        metrics = {
            number: output_directory.last_json_line(path / export.MANIFEST).get("metrics", {})
            for number, path in output_directory.numbered(self._output.exports)
        }
        return {number: sign * each[name] for number, each in metrics.items() if name in each}

    def _remove_old(self) -> None:
        found, values = output_directory.numbered(self._output.exports), self._values()
        best = max(values, key=lambda number: values[number], default=None)
        for number, path in found[: -self._flags.export_keep]:
            if number != best:
                output_directory.remove_directory(path)
        newest = found[-1][1] if found else None
        log(f"exported {newest}")
