"""What `program.py` trains, case by case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EXAMPLES, GLOBAL_BATCH, CLASSES, EPOCHS = 24, 12, 3, 2
ROWS = 5


@dataclass(frozen=True)
class Case:
    """What differs from case to case.

    Attributes:
      optimizer: the name of its class.
      options: of the optimizer.
      warms_up: whether the learning rate grows for three steps, and then falls.
      batch_norm: whether there is a BatchNormalization.
      embeds: whether the inputs are numbers of rows of an Embedding, whose gradients are sparse.
      examples: of an epoch; where they do not divide, replicas get unlike batches.
      named_inputs: whether the inputs are a dictionary.
      sample_weights: whether the dataset has them.
      repeats: whether the dataset has no end.
      arrays: whether `fit` is given numpy arrays in place of a dataset.
      class_weight: `class_weight` of `fit`.
      loss_scale: with which a LossScaleOptimizer begins; it doubles it every other step.
      scalar_loss: whether the loss function takes the mean over the batch itself.
      overflows: whether float32 cannot hold the scaled gradients of one example.
      evaluates: whether it validates, evaluates and predicts, too.
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
    class_weight: tuple[float, ...] = ()
    loss_scale: float | None = None
    overflows: bool = False
    scalar_loss: bool = False
    evaluates: bool = False


_MOMENTUM = (("momentum", 0.9),)
CASES = {
    "momentum": Case(options=_MOMENTUM, evaluates=True),
    "adam": Case("Adam"),
    "embeds": Case(embeds=True),
    "embeds_clipnorm": Case(options=(*_MOMENTUM, ("clipnorm", 0.1)), embeds=True),
    "adam_global_clipnorm": Case("Adam", (("global_clipnorm", 0.1),)),
    "warms_up": Case(options=_MOMENTUM, warms_up=True),
    "named_inputs": Case(named_inputs=True, evaluates=True),
    "sample_weights": Case(sample_weights=True),
    "repeats": Case(repeats=True),
    "arrays": Case(arrays=True, evaluates=True),
    "class_weight": Case(arrays=True, class_weight=(0.5, 1.0, 2.0)),
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
