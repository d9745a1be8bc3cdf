"""Evaluates a Keras model: once in the training tasks, or after each checkpoint in the evaluator.

evaluate(state, model, eval_input)                    # in every training task
follow(state, model, eval_input, "/shared/run1")      # in the evaluator
"""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from tfdist.compat import building
from tfdist.compat import keras as keras_compat
from tfdist.coordination.liveness.activity import EVALUATING
from tfdist.data.inputs import Data
from tfdist.storage import checkpointer as checkpoints
from tfdist.storage import files as checkpoint_files
from tfdist.storage.checkpointer import Checkpointer
from tfdist.storage.files import Fingerprint
from tfdist.storage.output_directory import OutputDirectory
from tfdist.storage.training_watch import TrainingWatch
from tfdist.training.records import evaluations
from tfdist.training.records.tensorboard import TensorBoardRun
from tfdist.training.scalars import scalars
from tfdist.training.state import TrainingState

#: If the number of epochs is unknown, a completion marker that existed at the start is considered
#: this training's own after this time.
_STALE_MARKER_SECONDS = 60.0


def evaluate(state: TrainingState, model: tf.keras.Model, dataset_fn: Data) -> dict[str, float]:
    """Evaluates the current model on each example once. Every training task must call it.

    Returns:
      The metrics over the examples of all tasks, by name.
    """
    with state.evaluating(model):
        logs = model.evaluate(
            state.eval_dataset(dataset_fn),
            callbacks=state.strategy.callbacks(),
            return_dict=True,
            verbose=0,
        )
        return state.strategy.cluster_metrics(model, logs)


def follow(
    state: TrainingState,
    model: tf.keras.Model,
    dataset_fn: Data,
    output_dir: str | None,
    *,
    epochs: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Evaluates the checkpoint of each epoch until training is complete and all are evaluated.

    Writes the results to `eval_metrics.jsonl`, one line per checkpoint, and to `logs/eval` for
    TensorBoard. Skips a damaged checkpoint with a warning.

    Args:
      state: the evaluator's `TrainingState`.
      model: the compiled model.
      dataset_fn: the input function of the evaluation data.
      output_dir: the training's output directory.
      epochs: the number of epochs of the training. With it, the evaluator does not stop at the
        completion marker of an earlier, shorter training.
      clock: returns seconds.
      sleep: waits for a number of seconds.

    Returns:
      The metrics of the last checkpoint, by name.

    Raises:
      UsageError: there is no output directory, or it cannot be written.
      OutputError: the evaluator of another job writes there, the results could not be written, or
        no chief trains there.
    """
    output = OutputDirectory(output_dir)
    evaluations.begin(output, state.reporter.activity, output.checkpoints)
    dataset = state.eval_dataset(dataset_fn)
    state.keep_outputs_float32(model)
    # A model that is not built would be restored later, when the training may have removed the
    # checkpoint, and a Keras 3 checkpoint identifies some variables only by their number.
    building.build_model(model, dataset.element_spec)
    if keras_compat.is_keras_3(model):
        building.build_optimizers(model)
    checkpointer = Checkpointer(model, output.checkpoints)
    summaries = TensorBoardRun(output.logs / "eval")
    first_marker, started = checkpoints.training_marker(output), clock()
    evaluated: dict[str, Fingerprint] = {}
    epoch = 0
    logs: dict[str, float] = {}
    watch = TrainingWatch(output, state.role.flags.startup_timeout, sleep)
    while True:
        # Read the marker first: if it exists, the last checkpoint exists too.
        marker = checkpoints.training_marker(output)
        for path in checkpoint_files.saved(output.checkpoints):
            fingerprint = checkpoint_files.fingerprint(path)
            if evaluated.get(path) == fingerprint:
                continue
            evaluated[path] = fingerprint
            if checkpoint_files.damage(path) is not None or not _try_to_restore(checkpointer, path):
                checkpoint_files.warn_if_damaged(path)
                continue
            epoch = checkpointer.position.epoch
            if checkpointer.position.steps:
                continue  # A checkpoint within an epoch, for resuming.
            with state.reporter.activity.doing(EVALUATING):
                logs = model.evaluate(dataset, return_dict=True, verbose=0)
            evaluations.record(output, logs, epoch=epoch)
            values = {f"epoch_{name}": value for name, value in scalars(logs).items()}
            summaries.scalars(values, epoch)
        if marker is not None and (
            marker != first_marker
            or (epochs is None and clock() - started > _STALE_MARKER_SECONDS)
            or (epochs is not None and checkpoints.is_complete(output, epoch, epochs))
        ):
            return logs
        watch.wait()


def _try_to_restore(checkpointer: Checkpointer, path: str) -> bool:
    """Restores a checkpoint; False if the training, which keeps the newest ones, has removed it."""
    try:
        checkpointer.restore(path)
    except tf.errors.OpError:
        if checkpoint_files.damage(path) is None:
            raise
        return False
    return True
