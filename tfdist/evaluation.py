"""The evaluator: evaluates each new checkpoint of a training that runs elsewhere.

job.evaluate(model, eval_input, output_dir)     # in the task of type evaluator
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdist import checkpoints
from tfdist.checkpoints import Checkpointer, OutputDirectory

if TYPE_CHECKING:
    from tfdist.strategies.base import DatasetFunction, Job

#: A mark of an earlier run that the training has not taken back by then is this training's own.
_STALE_MARK_SECONDS = 60.0


def follow(
    job: Job,
    model: tf.keras.Model,
    dataset_fn: DatasetFunction,
    output_dir: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Evaluates every checkpoint that appears, until training is complete and none is left.

    The results go to `eval_metrics.jsonl`, a line a checkpoint, and to TensorBoard's `logs/eval`.

    Returns:
      The metrics of the last checkpoint, by name.
    """
    output = OutputDirectory(output_dir)
    dataset = job.eval_dataset(dataset_fn)
    checkpointer = Checkpointer(model, output.checkpoints)
    writer = tf.summary.create_file_writer(str(output.logs / "eval"))
    first_mark, started = _mark(output), clock()
    evaluated: set[str] = set()
    logs: dict[str, float] = {}
    print(f"tfdist: evaluating the checkpoints in {output.checkpoints}", file=sys.stderr)
    while True:
        # Read before the checkpoints, so that the last one was there when training was complete.
        mark = _mark(output)
        for path in checkpoints.saved(output.checkpoints):
            if path in evaluated:
                continue
            evaluated.add(path)
            try:
                epoch = checkpointer.restore(path)
            except tf.errors.NotFoundError:
                continue  # Removed, because the training keeps only the newest.
            logs = model.evaluate(dataset, return_dict=True, verbose=0)
            # A job that went on from an earlier epoch comes by the later ones again.
            checkpoints.cut_json_lines(output.eval_metrics, partial(_is_before, epoch))
            record = {name: checkpoints.as_json(value) for name, value in logs.items()}
            checkpoints.append_json_line(output.eval_metrics, {"epoch": epoch, **record})
            with writer.as_default(step=epoch):
                for name, value in logs.items():
                    tf.summary.scalar(f"epoch_{name}", np.mean(value))
            writer.flush()
            results = ", ".join(f"{name} {np.mean(value):.4f}" for name, value in logs.items())
            print(f"epoch {epoch}: {results}", flush=True)
        is_new = mark != first_mark or clock() - started > _STALE_MARK_SECONDS
        if mark is not None and is_new:
            return logs
        sleep(1.0)


def _mark(output: OutputDirectory) -> str | None:
    try:
        return output.done.read_text()
    except FileNotFoundError:
        return None


def _is_before(epoch: int, record: dict[str, Any]) -> bool:
    return bool(record["epoch"] < epoch)
