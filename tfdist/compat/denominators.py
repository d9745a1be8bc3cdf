"""Combines replicas' gradients exactly, although their losses have different denominators.

    with step_of(model, batch):             # a model of `tfdist.upstream.keras_denominators`
        means = reduce_weighted(gradients, variables, sum_over_replicas, replicas=2)  # in a step

Keras divides the loss of a replica by what that replica has: its examples, the entries that its
mask leaves, or the sum of its sample weights. The loss of the whole batch has one denominator, the
sum of those of all replicas. So each replica scales its gradients by its share, its denominator in
units of a full batch, and sends the share with them. A replica without an example has the share 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.compat.gradients import scaled, with_shapes
from tfdist.errors import log

MEAN, SUM = "mean", "sum"

#: The name of the attribute of a weighed model that has its settings.
SETTINGS = "_tfdist_denominators"

_log_once = functools.cache(log)

Sums = Callable[[list[Any], list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Settings:
    """What the steps of a model have in common.

    Attributes:
      batch_size: the examples of a full batch of a replica; None if it is unknown.
      replicas: the number of replicas whose gradients an update combines.
      states: returns the variables that a step without an example must not change.
      sums: sums a tensor over the replicas of a step; None if they cannot.
      is_loop: whether a step is a loop over batches, whose number may differ between replicas.
      says: whether this task tells the user what cannot be exact.
      has_other_losses: whether a model adds other losses to one, while a step is traced.
    """

    batch_size: int | None
    replicas: int
    states: Callable[[], list[tf.Variable]]
    sums: Callable[[tf.Tensor], tf.Tensor] | None
    is_loop: bool
    says: bool
    has_other_losses: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class _Loss:
    """A loss that a step has computed: how it was reduced, and by what it was divided."""

    reduction: str
    denominator: tf.Tensor
    # The elements of one example; None if it is unknown.
    per_example: int | None
    is_whole_batch: bool


class Step:
    """A step of one replica, while it is traced.

    Args:
      settings: those of the model.
      examples: the number of examples, float32, shape [].
      evaluates: whether it is a step of an evaluation, which has no update.
    """

    def __init__(self, settings: Settings, examples: tf.Tensor, *, evaluates: bool) -> None:
        self._evaluates = evaluates
        self._size = float(settings.batch_size or 1)
        self.settings = settings
        self.examples = examples
        self.losses: list[_Loss] = []
        #: The sums of the messages of all replicas; shape [2].
        self.totals: tf.Tensor | None = None
        #: What Keras's `compute_loss` has returned: a part of the loss, which replicas sum.
        self.summed_loss: Any = None
        #: Updates of the mean loss: the function, the loss and the number of examples.
        self.waiting: list[tuple[Any, Any, Any]] = []
        self._before = [(each, each.read_value()) for each in settings.states()]
        self._graph = tf.compat.v1.get_default_graph()

    @property
    def is_apart(self) -> bool:
        """Whether it is a step of an evaluation that each task does on its own."""
        in_sync = tf.distribute.get_strategy().num_replicas_in_sync
        return self._evaluates and in_sync != self.settings.replicas

    @property
    def is_at_top(self) -> bool:
        """Whether it is traced outside of loops and conditions, where replicas wait for others."""
        return self._graph is tf.compat.v1.get_default_graph()

    def message(self) -> tf.Tensor:
        """What the replicas sum: the share, and the number of examples in units of a full batch, so
        that 16-bit floats can hold it; float32, shape [2]."""
        return tf.stack([self.share, self.examples / self._size])

    def settle(self) -> None:
        """Puts back the states that a step without an example has changed, and updates the mean
        losses with those of the whole batch. A second call does nothing."""
        while self._before:
            variable, value = self._before.pop()
            variable.assign(tf.where(self.examples > 0, variable.read_value(), value))
        if self.waiting and self.totals is None and not all(x.is_whole_batch for x in self.losses):
            self.say_once(
                "the logged losses of sums and masks are means of those of the replicas' batches"
            )
        while self.waiting:
            update, loss, weight = self.waiting.pop()
            if self.totals is not None:
                examples = 1.0 if weight is None else self.totals[1] * self._size
                share = tf.math.divide_no_nan(self.share, self.totals[0]) * self.settings.replicas
                loss = tf.math.multiply_no_nan(loss, tf.cast(share, loss.dtype))
                weight = examples / self.settings.replicas
            else:  # The loss of no example may be NaN.
                has_any = tf.cast(self.examples > 0, loss.dtype)
                loss = tf.math.multiply_no_nan(loss, has_any)
                weight = has_any * (1.0 if weight is None else tf.cast(weight, loss.dtype))
            update(loss, sample_weight=weight)

    def factor_beside_others(self, denominator: tf.Tensor | None) -> tf.Tensor | None:
        """The factor with which a loss can be weighted by examples like the step's other losses,
        whatever its denominator; None if it is the only loss, or replicas cannot sum tensors.

        Args:
          denominator: that of the loss; shape []. None for a sum, which has none.
        """
        settings, sums = self.settings, self.settings.sums
        if sums is None or self.is_apart or not self.is_at_top:
            return None
        if not self._evaluates and (settings.is_loop or not settings.has_other_losses()):
            return None
        own = [self.examples, self.examples if denominator is None else denominator]
        own = tf.stop_gradient(tf.stack(own))
        parts = tf.math.divide_no_nan(own, sums(own))
        part = 1 / settings.replicas if denominator is None else parts[1]
        return tf.math.divide_no_nan(part, parts[0])

    def say_once(self, text: str) -> None:
        """Logs a text, once in the life of this process."""
        if self.settings.says:
            _log_once(text)

    @functools.cached_property
    def share(self) -> tf.Tensor:
        """This replica's denominator, 1 for a full batch; float32, shape []."""
        losses = [each for each in self.losses if _is_reachable(each.denominator)]
        is_sum = bool(losses) and all(each.reduction == SUM for each in losses)
        if not losses:
            self.say_once(
                "the train step has no loss of Keras: tfdist takes its loss as the mean over the "
                "examples of a replica"
            )
        elif not all(each.is_whole_batch for each in losses) and (
            self.settings.has_other_losses() if len(losses) == 1 else not is_sum
        ):
            self.say_once(
                "the losses of this model have different denominators (masks, sample weights, or "
                "sums beside means): tfdist weights the gradients of each replica by its number of "
                "examples, which differs from one process unless replicas have the same"
            )
        if is_sum:
            return tf.ones([])
        if len(losses) == 1:
            (loss,) = losses
            return loss.denominator / (self._size * (loss.per_example or 1))
        return self.examples / self._size


_traced: ContextVar[Step | None] = ContextVar("_traced", default=None)


def current() -> Step | None:
    """The step that this thread is tracing; None outside of a step with weighted gradients."""
    return _traced.get()


def saw_loss(
    losses: tf.Tensor, reduction: str, mask: tf.Tensor | None, weights: tf.Tensor | None
) -> float | tf.Tensor:
    """Registers a loss that Keras is about to reduce.

    Args:
      losses: the losses before the reduction.
      reduction: MEAN or SUM.
      mask: what of the losses counts; None for all.
      weights: the sample weights, if their sum is the denominator.

    Returns:
      The factor of the loss, float or float32 of shape []: a sum is multiplied by the number of
      replicas if their gradients are averaged.
    """
    step = current()
    if step is None:
        return 1.0
    shape = losses.shape
    elements = tf.cast(tf.size(losses), tf.float32)
    denominator = elements
    if weights is not None:
        denominator = tf.reduce_sum(tf.cast(weights, tf.float32))
    elif mask is not None:
        total = tf.cast(tf.size(mask), tf.float32)
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        denominator = elements * tf.math.divide_no_nan(valid, total)
    if shape.rank == 0:
        denominator = step.examples
        if reduction == MEAN:
            step.say_once(
                "a loss function returns one number for a batch, which tfdist takes as the mean "
                "over the examples; return a number per example if it divides by something else"
            )
    is_whole_batch = reduction == MEAN and mask is None and weights is None
    per_example = shape[1:].num_elements() if shape.rank else 1
    in_sync = tf.distribute.get_strategy().num_replicas_in_sync
    factor = step.settings.replicas / in_sync if reduction == SUM else 1.0
    if not is_whole_batch:
        part = step.factor_beside_others(None if reduction == SUM else denominator)
        if part is not None:
            step.losses.append(_Loss(MEAN, step.examples, 1, is_whole_batch=True))
            return factor * part
    step.losses.append(_Loss(reduction, denominator, per_example, is_whole_batch))
    return factor


def reduce_weighted(
    gradients: Sequence[Any], variables: Sequence[Any], sums: Sums, replicas: int
) -> list[Any]:
    """The gradients of the whole batch.

    In the current step, they are those of the mean over all examples; without one, the plain
    average, or the sum if TensorFlow has divided the loss by the number of replicas.

    Args:
      gradients: tensors, `tf.IndexedSlices`, or None.
      variables: their variables.
      sums: takes gradients and their variables; returns their sums over the replicas.
      replicas: the number of replicas.
    """
    gradients = with_shapes(gradients, variables)
    step, present = current(), [each for each in gradients if each is not None]
    in_sync = float(tf.distribute.get_strategy().num_replicas_in_sync)
    if step is None or not present:
        found = list(sums(list(gradients), list(variables)))
        return scaled(found, tf.constant(in_sync / replicas))
    message = tf.cast(step.message(), present[0].dtype)
    # The share as it is sent, so that the shares of all replicas add up to their sum.
    sent = scaled(gradients, message[0])
    *found, totals = sums([*sent, message], [*variables, variables[0]])
    step.totals = tf.cast(totals, tf.float32)
    return scaled(found, tf.math.divide_no_nan(in_sync, step.totals[0]))


@contextmanager
def step_of(model: Any, data: Any, *, evaluates: bool = False) -> Iterator[Step | None]:
    """Makes the block a step with weighted gradients; yields None if the model has no settings.

    Args:
      model: the model.
      data: the batch of the replica.
      evaluates: whether it is a step of an evaluation.
    """
    settings: Settings | None = getattr(model, SETTINGS, None)
    if settings is None:
        yield None
        return
    step = Step(settings, examples_of(data), evaluates=evaluates)
    token = _traced.set(step)
    try:
        yield step
        step.settle()
    finally:
        _traced.reset(token)


def examples_of(data: Any) -> tf.Tensor:
    """The number of examples of a batch; float32, shape []."""
    first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    if isinstance(first, tf.SparseTensor):
        count = first.dense_shape[0]
    elif isinstance(first, tf.RaggedTensor):
        count = first.nrows()
    else:
        count = tf.shape(first)[0] if first.shape.rank else tf.constant(1)
    return tf.cast(count, tf.float32)


def _is_reachable(tensor: tf.Tensor) -> bool:
    """Whether the current graph or an outer one contains a tensor; True for eager tensors."""
    if not tf.is_symbolic_tensor(tensor):
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not tensor.graph:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None
