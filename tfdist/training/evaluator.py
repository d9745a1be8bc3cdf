"""The evaluator: evaluates each new checkpoint of a training that runs elsewhere.

job.evaluate(model, eval_input, output_dir)     # in the task of type evaluator
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfdist.checkpoints import checkpointer as checkpoints
from tfdist.checkpoints import files as checkpoint_files
from tfdist.checkpoints import output_directory
from tfdist.checkpoints.checkpointer import Checkpointer
from tfdist.checkpoints.files import Fingerprint
from tfdist.checkpoints.output_directory import OutputDirectory
from tfdist.compat import keras as keras_compat
from tfdist.errors import log

if TYPE_CHECKING:
    from tfdist.strategies.base import DatasetFunction, Job

#: Where nobody says how many epochs there are to be, a mark of an earlier run that the training has
#: not taken back by then is this training's own.
_STALE_MARK_SECONDS = 60.0


def follow(
    job: Job,
    model: tf.keras.Model,
    dataset_fn: DatasetFunction,
    output_dir: str,
    *,
    epochs: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Evaluates the checkpoint of each epoch, until training is complete and none is left.

    The results go to `eval_metrics.jsonl`, a line a checkpoint, and to TensorBoard's `logs/eval`.
    A damaged checkpoint is passed over with a warning.

    Args:
      job: the job, in its evaluator.
      model: the compiled model.
      dataset_fn: what to evaluate.
      output_dir: the training's output directory.
      epochs: how many the training is to have; with it the mark of an earlier run that had fewer
        is never taken for the end, however late the chief comes.
      clock: seconds.
      sleep: waits that many.

    Returns:
      The metrics of the last checkpoint, by name.

    Raises:
      UsageError: the output directory cannot be written.
      OutputError: the results could not be written.
    """
    output = OutputDirectory(output_dir)
    output_directory.check_writable(output.path, output.logs)
    output_directory.remove_leftovers(output.path, of_evaluation=True)
    dataset = job.eval_dataset(dataset_fn)
    if keras_compat.is_keras_3(model):
        # A checkpoint of Keras 3 has some of the variables by their number alone.
        checkpoints.build(model, dataset.element_spec)
    checkpointer = Checkpointer(model, output.checkpoints)
    writer = tf.summary.create_file_writer(str(output.logs / "eval"))
    first_mark, started = checkpoints.read_mark(output), clock()
    evaluated: dict[str, Fingerprint] = {}
    epoch = 0
    logs: dict[str, float] = {}
    log(f"evaluating the checkpoints in {output.checkpoints}")
    while True:
        # Read before the checkpoints, so that the last one was there when training was complete.
        mark = checkpoints.read_mark(output)
        for path in checkpoint_files.saved(output.checkpoints):
            fingerprint = checkpoint_files.fingerprint(path)
            if evaluated.get(path) == fingerprint:
                continue
            evaluated[path] = fingerprint
            if not _is_whole(path):
                continue
            try:
                epoch = checkpointer.restore(path)
            except tf.errors.NotFoundError:
                continue  # Removed, because the training keeps only the newest.
            if checkpointer.position.steps:
                continue  # Within an epoch, for the job to go on from.
            logs = model.evaluate(dataset, return_dict=True, verbose=0)
            _record(output, writer, epoch, logs)
        if mark is not None and (
            mark != first_mark
            or (epochs is None and clock() - started > _STALE_MARK_SECONDS)
            or (epochs is not None and checkpoints.is_complete(output, epoch, epochs))
        ):
            return logs
        sleep(1.0)


def _is_whole(path: str) -> bool:
    reason = checkpoint_files.damage(path)
    # One that is no longer named was removed, because the training keeps only the newest.
    if reason and path in checkpoint_files.saved(Path(path).parent):
        checkpoint_files.warn_once(path, reason)
    return reason is None


def _record(
    output: OutputDirectory, writer: tf.summary.SummaryWriter, epoch: int, logs: dict[str, float]
) -> None:
    # A job that went on from an earlier epoch comes by the later ones again.
    output_directory.cut_json_lines(output.eval_metrics, lambda line: bool(line["epoch"] < epoch))
    record = {name: output_directory.as_json(value) for name, value in logs.items()}
    output_directory.append_json_line(output.eval_metrics, {"epoch": epoch, **record})
    with output_directory.writing(output.logs), writer.as_default(step=epoch):
        for name, value in logs.items():
            tf.summary.scalar(f"epoch_{name}", np.mean(value))
        writer.flush()
    results = ", ".join(f"{name} {np.mean(value):.4f}" for name, value in logs.items())
    print(f"epoch {epoch}: {results}", flush=True)
