"""Evaluation of a Keras model: once, by all tasks that train, or after each checkpoint.

evaluate(run, model, eval_input)                    # in every task that trains
follow(run, model, eval_input, "/shared/run1")      # in the evaluator
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

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
from tfdist.strategies.base import DatasetFunction
from tfdist.training.run import TrainingRun

#: If the number of epochs is unknown, a completion marker that was there from the start counts as
#: this training's own after that time.
_STALE_MARKER_SECONDS = 60.0


def evaluate(
    run: TrainingRun, model: tf.keras.Model, dataset_fn: DatasetFunction
) -> dict[str, float]:
    """Evaluates the model as it is, each example once; collective over the tasks that train.

    Returns:
      The metrics over the examples of all tasks, by name.
    """
    logs = model.evaluate(
        run.eval_dataset(dataset_fn),
        callbacks=run.strategy.callbacks(),
        return_dict=True,
        verbose=0,
    )
    return run.strategy.cluster_metrics(model, logs)


def follow(
    run: TrainingRun,
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
    A damaged checkpoint is skipped with a warning.

    Args:
      run: that of the evaluator.
      model: the compiled model.
      dataset_fn: what to evaluate.
      output_dir: the training's output directory.
      epochs: those of the training; with them the completion marker of an earlier and shorter
        training is never mistaken for the end.
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
    dataset = run.eval_dataset(dataset_fn)
    if keras_compat.is_keras_3(model):
        # A checkpoint of Keras 3 has some of the variables by their number alone.
        checkpoints.build(model, dataset.element_spec)
    checkpointer = Checkpointer(model, output.checkpoints)
    writer = tf.summary.create_file_writer(str(output.logs / "eval"))
    first_mark, started = checkpoints.read_marker(output), clock()
    evaluated: dict[str, Fingerprint] = {}
    epoch = 0
    logs: dict[str, float] = {}
    log(f"evaluating the checkpoints in {output.checkpoints}")
    while True:
        # Read before the checkpoints, so that the last one was there when training was complete.
        mark = checkpoints.read_marker(output)
        for path in checkpoint_files.saved(output.checkpoints):
            fingerprint = checkpoint_files.fingerprint(path)
            if evaluated.get(path) == fingerprint:
                continue
            evaluated[path] = fingerprint
            if not _is_intact(path):
                continue
            try:
                epoch = checkpointer.restore(path)
            except tf.errors.NotFoundError:
                continue  # Removed, because the training keeps only the newest.
            if checkpointer.position.steps:
                continue  # Within an epoch; the job resumes from it.
            logs = model.evaluate(dataset, return_dict=True, verbose=0)
            _record(output, writer, epoch, logs)
        if mark is not None and (
            mark != first_mark
            or (epochs is None and clock() - started > _STALE_MARKER_SECONDS)
            or (epochs is not None and checkpoints.is_complete(output, epoch, epochs))
        ):
            return logs
        sleep(1.0)


def _is_intact(path: str) -> bool:
    reason = checkpoint_files.damage(path)
    # One that is no longer named was removed, because the training keeps only the newest.
    if reason and path in checkpoint_files.saved(Path(path).parent):
        checkpoint_files.warn_once(path, reason)
    return reason is None


def _record(
    output: OutputDirectory, writer: tf.summary.SummaryWriter, epoch: int, logs: dict[str, float]
) -> None:
    # A resumed job evaluates later epochs again.
    output_directory.cut_json_lines(output.eval_metrics, lambda line: bool(line["epoch"] < epoch))
    record = {name: output_directory.as_json(value) for name, value in logs.items()}
    output_directory.append_json_line(output.eval_metrics, {"epoch": epoch, **record})
    with output_directory.writing(output.logs), writer.as_default(step=epoch):
        for name, value in logs.items():
            tf.summary.scalar(f"epoch_{name}", np.mean(value))
        writer.flush()
    results = ", ".join(f"{name} {np.mean(value):.4f}" for name, value in logs.items())
    print(f"epoch {epoch}: {results}", flush=True)
