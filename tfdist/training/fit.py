"""The short form of a training, `Job.fit`: every task makes the same call and does its own part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat import replaced
from tfdist.data.inputs import Data
from tfdist.errors import EXIT_OK, UsageError
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training import callbacks, evaluator, steps_per_execution
from tfdist.training.state import TrainingState


def fit(
    state: TrainingState,
    build_model: Callable[[], tf.keras.Model],
    train_input: Data,
    *,
    epochs: int,
    output_dir: str | None,
    validation: Data | None,
    steps_per_epoch: int | None,
    save_steps: int | None,
    keep: int,
    own_callbacks: Sequence[tf.keras.callbacks.Callback],
    verbose: int | None,
    batch_size: int | None,
) -> tf.keras.callbacks.History:
    """Trains, serves, evaluates, or describes the model, by this task's role; see `Job.fit`.

    Raises:
      SystemExit: this task does not train (code 0), or it was preempted (code 75).
    """
    role, strategy = state.role, state.strategy
    if role.serves:
        strategy.serve()
        sys.exit(EXIT_OK)
    output_dir = str(OutputDirectory(output_dir).path)  # Refused before the data are read.
    with strategy.scope():
        model = _checked(build_model())
    if role.evaluates:
        if validation is None:
            raise UsageError(
                "validation",
                received=None,
                accepted="an input function in a job with an evaluator",
                remedy="Pass validation to job.fit, or leave the evaluator out.",
            )
        evaluator.follow(state, model, validation, output_dir, epochs=epochs)
        sys.exit(EXIT_OK)
    data = state.dataset(train_input, batch_size)
    assert state.data is not None
    state.data.check_length(steps_per_epoch, epochs, is_of_data=True)
    if role.is_dry_run:
        state.prepare(model)  # Logs what the strategy makes of the model.
        sys.exit(EXIT_OK)
    # Before Keras 3 builds it, which needs a model that computes outputs.
    state.build(model)
    own = callbacks.standard(state, output_dir, keep=keep, save_steps=save_steps)
    validation_data = None if validation is None else state.eval_dataset(validation, batch_size)
    with replaced.fitting():
        short_steps = steps_per_execution.callbacks(
            state, model, own_callbacks, save_steps=save_steps, validation=validation_data
        )
        return model.fit(
            data,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            callbacks=[*own, *short_steps, *own_callbacks],
            verbose=default_verbosity(state) if verbose is None else verbose,
        )


def check_is_function(build_model: Any) -> None:
    """Raises UsageError if given a model, because it was built outside of the strategy's scope."""
    if isinstance(build_model, tf.keras.Model):
        raise _unsuitable(f"the model {build_model.name}", "Build it in a function, and pass that.")


def _checked(model: Any) -> tf.keras.Model:
    remedy = "Call model.compile in it, and return the model."
    if not callable(getattr(model, "fit", None)):
        raise _unsuitable(type(model).__name__, remedy)
    if not keras_compat.is_compiled(model):
        raise _unsuitable(f"{model.name}, which is not compiled", remedy)
    return model


def _unsuitable(received: str, remedy: str) -> UsageError:
    accepted = "a function that returns a compiled Keras model"
    return UsageError("build_model", received=received, accepted=accepted, remedy=remedy)


def default_verbosity(state: TrainingState) -> int:
    """`verbose` for Keras: a progress bar on the chief's terminal, one line per epoch if the
    chief's output goes to a file, and no output from the other tasks."""
    if not state.is_chief:
        return 0
    return 1 if sys.stdout.isatty() else 2
