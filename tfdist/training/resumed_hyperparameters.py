"""Decides between the hyperparameters of a checkpoint and those that the script sets.

script = settle(state, variables, script, position)      # after the checkpoint is restored
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose

import tensorflow as tf

from tfdist.data.position import Position
from tfdist.errors import log
from tfdist.training.state import TrainingState


def settle(
    state: TrainingState,
    variables: Mapping[str, tf.Variable],
    script: Mapping[str, float],
    position: Position,
) -> dict[str, float]:
    """Decides between the hyperparameters of the checkpoint and those of the script.

    Scales the checkpoint's learning rates to this job's batches per update. Applies
    `--resume_hyperparameters` to values that the script has changed since the last start; all
    others, which only a callback may have changed, are the checkpoint's. The chief logs changes.

    Args:
      state: the state of the training.
      variables: the restored variables of the hyperparameters, by name.
      script: what the script has set, by name.
      position: the position in the checkpoint.

    Returns:
      What the next checkpoint records as the values of the script, by name.
    """
    recorded = dict(script)
    own, saved = state.batches_per_update, position.batches_per_update
    choice = state.role.flags.resume_hyperparameters
    tell = log if state.is_chief else lambda _: None
    for name, variable in variables.items():
        restored = float(variable.numpy())
        before = position.hyperparameters.get(name, restored)
        is_scaled = state.scales_learning_rate and name.startswith("learning_rate")
        if is_scaled and saved not in (0, own):
            restored, before = restored * own / saved, before * own / saved
            variable.assign(restored)
            tell(
                f"the checkpoint is from {_batches(saved)}; the learning rate is scaled to "
                f"{restored:g} for {_batches(own)}"
            )
        if isclose(script[name], before, rel_tol=1e-5):
            continue
        if choice == "script":
            variable.assign(script[name])
        else:
            recorded[name] = before
        if not isclose(script[name], restored, rel_tol=1e-5):
            tell(
                f"{name} is now {script[name]:g} in the script, and {restored:g} in the "
                f"checkpoint: that of the {choice} is used (--resume_hyperparameters={choice})"
            )
    return recorded


def _batches(count: int) -> str:
    return f"{count} batch{'es' * (count > 1)} per update"
