"""`--accumulate_steps=K`: each update of the weights uses K batches, one after the other.

    feed = Feed(data, context, trains=True, accumulate_steps=4)  # batches of 16 examples
    accumulate(model, 16, 4, reads_once=False)                   # in groups of 64

A step of Keras is an update, so checkpoints, schedules and callbacks count updates. The gradient is
the mean over all examples of the group, also in the smaller last group of an epoch, as with batches
of K times the size. Horovod's `backward_passes_per_step` and `accelerate`'s
`gradient_accumulation_steps` count single batches instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import denominators
from tfdist.compat import keras as keras_compat
from tfdist.compat.building import zeros
from tfdist.compat.gradients import scaled, with_shapes
from tfdist.compat.replaced import replace, replaced
from tfdist.errors import UsageError
from tfdist.strategies.optimizer_calls import Update, taking_updates
from tfdist.strategies.parameter_server.variables.local_reads import reading_once
from tfdist.upstream import autograph

_FLAG = "--accumulate_steps"


def accumulate(model: Any, batch_size: int, steps: int, *, reads_once: bool) -> None:
    """Makes the train step of a compiled model compute its gradients batch by batch.

    Args:
      model: the model; its train step calls its optimizer once.
      batch_size: the number of examples in a batch.
      steps: the number of batches of an update.
      reads_once: whether a step reads each weight from its device once, because that is on another
        machine.

    Raises:
      UsageError: the model has several optimizers, a legacy one, or a loss that is a sum.
    """
    _check(model)
    own = model.train_step

    def train_step(data: Any) -> Any:
        weights = model.trainable_variables if reads_once else ()
        step = _Step(model, autograph.converted(own), data, batch_size, steps)
        return _update(step, reading_once(weights))

    replace(model, "train_step", train_step)


@tf.autograph.experimental.do_not_convert
def _update(step: _Step, reading: AbstractContextManager[None]) -> Any:
    with reading:
        sums, logs = step.run()
    return step.apply(sums, logs)


class _Call(NamedTuple):
    """A call of the optimizer in a step.

    Attributes:
      gradients: tensors or `tf.IndexedSlices`.
      shapes: the shape of the weight of each gradient.
      apply: takes other values for the gradients, and updates the weights.
      share: the share of the batch, of a step that knows it (`compat.denominators`).
    """

    gradients: list[Any]
    shapes: list[tf.TensorShape]
    apply: Callable[[list[Any]], Any]
    share: tf.Tensor | None


class _Step:
    """A step, while its graph is made.

    Args:
      model: the model.
      train_step: its own train step.
      data: tensors whose first dimension is that of the examples, and None.
      batch_size: the number of examples in a batch.
      steps: the number of batches of an update.
    """

    def __init__(self, model: Any, train_step: Any, data: Any, batch_size: int, steps: int) -> None:
        self._model = model
        self._train_step = train_step
        self._data = data
        self._size, self._steps = batch_size, steps
        first = next(tensor for tensor in tf.nest.flatten(data) if tensor is not None)
        self._examples = tf.shape(first)[0]
        self._call: _Call | None = None
        self._returns_results = False

    def run(self) -> tuple[list[Any], Any]:
        """The gradients of all batches, and the logs of the last one."""
        # Traced once, and called in a loop.
        function = tf.function(tf.autograph.experimental.do_not_convert(self._batch))
        try:
            batch = function.get_concrete_function(tf.TensorSpec([], tf.int32))
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise UsageError(
                _FLAG,
                received="a train step with an operation over all replicas, such as metric.result",
                accepted="a train step that returns self.get_metrics_result(), under this strategy",
                remedy="Return that, leave the flag out, or choose another strategy.",
            ) from None
        gradients, log_specs = batch.structured_outputs
        count = -(-self._examples // self._size)
        accumulators = [_accumulator(gradient, count) for gradient in gradients]
        no_logs = zeros(log_specs)

        def body(index: tf.Tensor, sums: Any, logs: Any) -> tuple[tf.Tensor, Any, Any]:
            gradients, logs = batch(index)
            pairs = zip(sums, gradients, strict=True)
            return index + 1, [_add(total, each, index) for total, each in pairs], logs

        _, sums, logs = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(0), accumulators, no_logs),
            parallel_iterations=1,
        )
        assert self._call is not None
        return [_total(*each) for each in zip(sums, self._call.shapes, strict=True)], logs

    def apply(self, sums: list[Any], logs: Any) -> Any:
        """Updates the weights with the gradients of all batches; returns what the step returns.

        TensorFlow does not compute the results of metrics over all replicas in a loop.

        Args:
          sums: those of the gradients, and of their share.
          logs: what the train step has returned for the last batch.
        """
        assert self._call is not None
        *gradients, share = sums
        means = scaled(gradients, tf.math.divide_no_nan(1.0, share))
        with denominators.step_of(self._model, self._data) as step:
            if step is not None:
                step.share = share / self._steps  # That of several batches.
            self._call.apply(means)
        return self._model.get_metrics_result() if self._returns_results else logs

    def _batch(self, index: tf.Tensor) -> tuple[list[Any], Any]:
        """The gradients of a batch times its share, the share, and the logs."""
        begin = index * self._size
        end = tf.minimum(begin + self._size, self._examples)
        part = tf.nest.map_structure(lambda x: None if x is None else x[begin:end], self._data)
        with _recorded(self._model.optimizer) as calls, _without_results(self._model) as asked:
            logs = self._train_step(part)
        self._returns_results = bool(asked)
        if len(calls) != 1:
            raise UsageError(
                _FLAG,
                received=f"a train step that updates the weights {len(calls)} times",
                accepted="a train step that calls its optimizer once",
                remedy="Leave it out.",
            )
        self._call = calls[0]
        share = calls[0].share
        if share is None:
            share = tf.cast(end - begin, tf.float32) / float(self._size)
        return [*scaled(calls[0].gradients, share), share], logs


@contextmanager
def _recorded(optimizer: Any) -> Iterator[list[_Call]]:
    """Within the block, records the calls of the optimizer in place of making them."""
    calls: list[_Call] = []

    def record(gradients: list[Any], variables: list[Any], update: Update) -> None:
        gradients = with_shapes(gradients, variables)
        # Without the weights that have no gradient.
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]

        def update_all(sums: list[Any]) -> Any:
            found = dict(zip(places, sums, strict=True))
            return update([found.get(place) for place in range(len(gradients))])

        present = [gradients[place] for place in places]
        shapes = [*(tf.TensorShape(variables[place].shape) for place in places), tf.TensorShape([])]
        step = denominators.current()
        share = None if step is None else step.share
        calls.append(_Call(present, shapes, update_all, share))

    with replaced(optimizer, *taking_updates(optimizer, record)):
        yield calls


@contextmanager
def _without_results(model: Any) -> Iterator[list[bool]]:
    """Within the block, `get_metrics_result` returns nothing; yields whether it was called."""
    asked: list[bool] = []

    def no_results() -> dict[str, Any]:
        asked.append(True)
        return {}

    with replaced(model, "get_metrics_result", no_results):
        yield asked


def _accumulator(gradient: Any, count: tf.Tensor) -> Any:
    """Zeros for a dense gradient; for `tf.IndexedSlices`, arrays with an element per batch."""
    if not isinstance(gradient, (tf.IndexedSlices, tf.IndexedSlicesSpec)):
        return tf.zeros(gradient.shape, gradient.dtype)
    return [
        tf.TensorArray(part.dtype, count, element_shape=part.shape, infer_shape=False)
        for part in (gradient.values, gradient.indices)
    ]


def _add(total: Any, gradient: Any, index: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values, indices = total
        return [values.write(index, gradient.values), indices.write(index, gradient.indices)]
    return total + gradient


def _total(total: Any, shape: tf.TensorShape) -> Any:
    if isinstance(total, list):
        values, indices = total
        return tf.IndexedSlices(values.concat(), indices.concat(), tf.constant(shape.as_list()))
    return total


def _check(model: Any) -> None:
    optimizers = keras_compat.optimizers_of(model)
    kinds = [type(each).__name__ for each in optimizers]
    losses = tf.nest.flatten(getattr(model, "loss", None))
    sums = [each for each in losses if str(getattr(each, "reduction", "")).lower() == "sum"]
    if len(kinds) != 1:
        received = f"a model with {len(kinds)} optimizers: {', '.join(kinds)}"
    elif not isinstance(optimizers[0], tf.keras.optimizers.Optimizer):
        # Over several replicas it fails in a loop, or never returns.
        received = f"the legacy optimizer {kinds[0]}"
    elif sums:
        received = f"the loss {type(sums[0]).__name__} with reduction='sum'"
    else:
        return
    raise UsageError(
        _FLAG,
        received=received,
        accepted="a model with one Keras optimizer, whose loss is a mean over the examples",
        remedy="Leave it out, or change the model.",
    )
