"""Writes the results of the evaluator to `eval_metrics.jsonl`.

begin(output, reporter.activity, output.checkpoints)      # once, in the evaluator
record(output, {"loss": 0.5}, epoch=3)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.coordination.liveness.activity import WAITING, Activity
from tfdist.errors import log
from tfdist.storage import files as checkpoint_files
from tfdist.storage import lock, output_directory
from tfdist.storage.output_directory import OutputDirectory


def begin(output: OutputDirectory, activity: Activity, checkpoints: Path) -> None:
    """Takes the lock of the evaluator.

    Args:
      output: the output directory.
      activity: what this task does.
      checkpoints: the directory of the checkpoints.

    Raises:
      UsageError: the output directory cannot be written.
      OutputError: the evaluator of another job writes there.
    """
    lock.hold(output.eval_lock)
    output_directory.check_writable(output.path, output.logs)
    checkpoint_files.remove_leftovers(output.path, of_evaluation=True)
    log(f"evaluating the checkpoints in {checkpoints}")
    activity.enter(WAITING)


def record(output: OutputDirectory, metrics: Mapping[str, Any], **place: int) -> None:
    """Adds the line of a checkpoint, removes those of later ones, and prints the results.

    Args:
      output: the output directory.
      metrics: numbers and arrays, by name.
      place: the `epoch` or the `global_step` of the checkpoint.

    Raises:
      OutputError: it could not be written.
    """
    ((name, value),) = place.items()
    # A resumed job evaluates them again.
    output_directory.cut_json_lines(output.eval_metrics, lambda line: bool(line[name] < value))
    output_directory.append_metrics(output.eval_metrics, metrics, **place, time=time.time())
    results = ", ".join(f"{key} {np.mean(each):.4f}" for key, each in metrics.items())
    print(f"{name.removeprefix('global_')} {value}: {results}", flush=True)
