"""Files with the rows of dynamic tables that have changed, and what applies them to a model.

    write(Path("deltas/1300"), {"users": (ids, rows)}, {"users": {17}}, base=1200)
    apply_deltas(model, "deltas", base=1200)      # 1300, or the step of a later delta after it

A directory has a `.npz` file for each table, with `ids`, `rows` and `removed`, and `manifest.json`
with `base`, the step of the export or the delta before it, `step`, and the names of the tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import UsageError
from tfdist.layers.dynamic_embedding import of_model

_MANIFEST = "manifest.json"


def write(
    directory: Path,
    tables: Mapping[str, tuple[np.ndarray, np.ndarray]],
    removed: Mapping[str, Collection[int]],
    *,
    base: int,
) -> None:
    """Writes the rows of tables that have changed.

    Args:
      directory: a new directory, whose name is the number of updates.
      tables: by table, ids of int64, shape [n], and their rows, shape [n, dimension].
      removed: by table, the ids that have lost their rows; those in `tables` have new ones.
      base: the number of updates of what was written before.
    """
    directory.mkdir(parents=True)
    for name, (ids, rows) in tables.items():
        gone = np.setdiff1d(np.fromiter(removed.get(name, ()), np.int64), ids)
        np.savez(directory / f"{name}.npz", ids=ids, rows=rows, removed=gone)
    manifest = {"base": base, "step": int(directory.name), "tables": list(tables)}
    (directory / _MANIFEST).write_text(json.dumps(manifest) + "\n")


def apply_deltas(model: Any, directory: str | os.PathLike[str], base: int) -> int:
    """Gives the dynamic tables of a model the rows that a training has changed since an export.

    Args:
      model: the model of an export, or with the deltas until `base`.
      directory: the directory `deltas` of the training's output directory.
      base: the step of the export, or of the last delta that was applied.

    Returns:
      The step of the last delta; `base` if there is none yet.

    Raises:
      UsageError: a delta is of a table that the model does not have.
    """
    tables = {table.name: table for table in of_model(model)}
    found = map(json.loads, (path.read_text() for path in Path(directory).glob(f"*/{_MANIFEST}")))
    by_base = {manifest["base"]: manifest for manifest in found}
    while manifest := by_base.get(base):
        base = manifest["step"]
        for name in manifest["tables"]:
            if name not in tables:
                raise UsageError(
                    "model",
                    received=f"a model with the dynamic tables {', '.join(tables) or 'none'}",
                    accepted=f"a model with the table {name}",
                    remedy="Pass the model of the training.",
                )
            with np.load(Path(directory, str(base), f"{name}.npz")) as content:
                tables[name].remove(content["removed"])
                tables[name].set_rows(content["ids"], content["rows"])
    return base
