"""The cases that `keras3_program.py` trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EXAMPLES, GLOBAL_BATCH, CLASSES, EPOCHS = 24, 12, 3, 2
ROWS = 5


@dataclass(frozen=True)
class Case:
    """The options of one training.

    Attributes:
      optimizer: the name of the optimizer's class.
      options: the optimizer's arguments.
      warms_up: whether the learning rate grows for three steps and then decays.
      batch_norm: whether the model has a BatchNormalization layer.
      embeds: whether the inputs are indices for an Embedding layer, whose gradients are sparse.
      examples: the number of examples per epoch; if it is not a multiple of the global batch, the
        replicas get batches of different sizes.
      named_inputs: whether the inputs are a dictionary.
      sample_weights: whether the dataset has sample weights.
      repeats: whether the dataset repeats forever.
      arrays: whether `fit` gets NumPy arrays instead of a dataset.
      loss_scale: the initial scale of a LossScaleOptimizer, which doubles it every other step.
      scalar_loss: whether the loss function returns the mean over the batch.
      overflows: whether the scaled gradients of one example overflow float32.
      evaluates: whether the program also validates, evaluates and predicts.
    """

    optimizer: str = "SGD"
    options: tuple[tuple[str, Any], ...] = ()
    warms_up: bool = False
    batch_norm: bool = False
    embeds: bool = False
    examples: int = EXAMPLES
    named_inputs: bool = False
    sample_weights: bool = False
    repeats: bool = False
    arrays: bool = False
    loss_scale: float | None = None
    overflows: bool = False
    scalar_loss: bool = False
    evaluates: bool = False


_MOMENTUM = (("momentum", 0.9),)
CASES = {
    "momentum": Case(options=_MOMENTUM, evaluates=True),
    "embeds": Case(embeds=True),
    "embeds_clipnorm": Case(options=(*_MOMENTUM, ("clipnorm", 0.1)), embeds=True),
    "adam_global_clipnorm": Case("Adam", (("global_clipnorm", 0.1),)),
    "warms_up": Case(options=_MOMENTUM, warms_up=True),
    "named_inputs": Case(named_inputs=True, evaluates=True),
    "repeats": Case(repeats=True),
    "arrays": Case(arrays=True, evaluates=True),
    "scalar_loss": Case(scalar_loss=True),
    "loss_scale": Case(options=_MOMENTUM, loss_scale=2.0**15),
    "loss_scale_overflows": Case(
        options=_MOMENTUM, loss_scale=2.0**40, sample_weights=True, overflows=True
    ),
    "batch_norm": Case(options=_MOMENTUM, batch_norm=True, evaluates=True),
    "batch_norm_adam_clipvalue": Case("Adam", (("clipvalue", 0.01),), batch_norm=True),
    "uneven": Case(options=_MOMENTUM, examples=EXAMPLES - 3),
    "uneven_batch_norm": Case(options=_MOMENTUM, batch_norm=True, examples=GLOBAL_BATCH + 1),
}
