"""Records what each worker contributes to a synchronous update, and combines it on the ps.

    packed = recorded.in_packs(packs=True)               # in the worker's step; see `recorder`
    contribution = recorded.on_ps(packed)                # tensors on the ps
    recorded.apply([contribution, …])                    # combines, and updates the weights once

The gradients are outputs of the worker's function that TensorFlow computes on the ps of their
weights, so they never pass through the chief. A contribution that comes late is never read. Each ps
also receives the share of the worker (`tfdist.compat.denominators`), which is 0 without data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import denominators
from tfdist.compat import keras as keras_compat
from tfdist.compat.gradients import scaled
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.transfers.packing import pack, packs_of, unpack

Combine = Callable[[Sequence[tf.Tensor]], tf.Tensor]


class Update(NamedTuple):
    """One call of an optimizer in a step.

    Attributes:
      apply: takes the averaged gradients and updates the weights.
      gradients: tensors, `tf.IndexedSlices`, or None.
      variables: the `tf.Variable` of each gradient.
      before: the number of operations of the step before the call.
      share: the share of this worker's batch, float32, shape [].
    """

    apply: Callable[[list[Any]], None]
    gradients: list[Any]
    variables: list[tf.Variable]
    before: int
    share: tf.Tensor


class Part(NamedTuple):
    """A tensor of the contribution.

    Attributes:
      variable: the variable on whose ps it is combined with those of the other workers.
      tensor: the tensor.
      combine: combines the tensors of all workers.
    """

    variable: tf.Variable
    tensor: tf.Tensor
    combine: Combine


class Pack(NamedTuple):
    """Tensors of the contribution that are sent to one ps together.

    Attributes:
      device: the device of the ps.
      combine: how they are combined with those of the other workers.
      places: the place of each tensor among those of the contribution.
      specs: the specs of the tensors.
    """

    device: str
    combine: Combine
    places: list[int]
    specs: list[tf.TensorSpec]


class Recorded:
    """The contribution of a worker's step, as symbolic tensors of its graph.

    Args:
      graph: the graph of the step.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._updates: list[Update] = []
        # (variable, change) pairs.
        self._changes: list[tuple[tf.Variable, tf.Tensor]] = []
        self._packs: list[Pack] = []

    def add(
        self, apply: Callable[[list[Any]], Any], gradients: Iterable[Any], variables: Iterable[Any]
    ) -> None:
        """Records a call of an optimizer.

        Raises:
          UsageError: the call is in a function or branch of the step, such as a `tf.cond`.
        """
        if tf.compat.v1.get_default_graph() is not self.graph:
            raise UsageError(
                "train_step",
                received="a call of the optimizer inside a tf.function, a tf.cond or a loop",
                accepted="a call in the train step itself, under parameter_server with --sync",
                remedy="Move the call out of it, or leave out --sync.",
            )
        owners = keras_compat.as_tensorflow(variables)
        recorded = [
            _as_tensors(gradient, variable)
            for gradient, variable in zip(gradients, owners, strict=True)
        ]
        before = len(self.graph.get_operations())
        step = denominators.current()
        share = tf.ones([]) if step is None else step.share
        recorded = scaled(recorded, share)
        self._updates.append(Update(apply, recorded, owners, before, share))

    def change(self, variable: tf.Variable, change: tf.Tensor) -> None:
        """Records the change of a statistic in this step."""
        self._changes.append((variable, change))

    def check_assignment(self, variable: tf.Variable) -> None:
        """Checks that the step does not assign to a variable that it has updated.

        Raises:
          UsageError: it does.
        """
        if any(variable is updated for update in self._updates for updated in update.variables):
            raise _uses_updated_weights("assigns to", variable)

    def check(self) -> None:
        """Checks the updates of the step; call it at the end.

        The update happens when the steps of all workers have ended, so a step that needs its own
        would read the weights as they were before.

        Raises:
          UsageError: the step has no update, or reads or changes a weight after an update of it.
        """
        if not self._updates:
            # The workers' steps would update the weights themselves, one after the other.
            raise UsageError(
                "optimizer",
                received="a train step without an optimizer of this job",
                accepted="one that calls it, under parameter_server with --sync",
                remedy="Pass job.callbacks to fit, or the optimizer to job.wrap_optimizer.",
            )
        operations = self.graph.get_operations()
        inside = {
            id(outside): own
            for outside, own in zip(
                self.graph.external_captures, self.graph.internal_captures, strict=True
            )
        }
        for update in self._updates:
            later = {id(each) for op in operations[update.before :] for each in op.inputs}
            for variable in update.variables:
                if id(inside.get(id(variable.handle))) in later:
                    raise _uses_updated_weights("reads", variable)
        for variable, _ in self._changes:
            self.check_assignment(variable)

    @tf.autograph.experimental.do_not_convert
    def in_packs(self, *, packs: bool) -> list[tf.Tensor]:
        """The contribution, with the small tensors for the same ps packed.

        Args:
          packs: whether to pack; otherwise each tensor is alone.
        """
        # A mean is that of the statistics of all examples.
        share = self._updates[-1].share if self._updates else tf.ones([])
        self._changes = [
            (each, scaled([change], share)[0] if _is_mean(each) else change)
            for each, change in self._changes
        ]
        parts = list(self._parts())
        tensors = [part.tensor for part in parts]
        devices = [part.variable.device for part in parts]
        packed: list[tf.Tensor] = []
        alone = [[place] for place in range(len(parts))]
        for places in packs_of(tensors, devices) if packs else alone:
            sent = [tensors[place] for place in places]
            specs = [tf.TensorSpec.from_tensor(each) for each in sent]
            # Only gradients and changes that are summed are small enough for a common pack.
            combine = parts[places[0]].combine
            self._packs.append(Pack(devices[places[0]], combine, places, specs))
            packed.append(pack(sent) if len(sent) > 1 else sent[0])
        return packed

    @tf.autograph.experimental.do_not_convert
    def on_ps(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends the result of `in_packs` to the ps."""
        sent = []
        for each, tensor in zip(self._packs, packed, strict=True):
            with tf.device(each.device):
                sent.append(tf.identity(tensor))
        return sent

    def apply(self, contributions: Sequence[Sequence[tf.Tensor]]) -> None:
        """Combines contributions in their order, and updates the weights and statistics once."""
        totals: dict[int, tf.Tensor] = {}
        for number, (device, combine, places, specs) in enumerate(self._packs):
            with tf.device(device):
                total = combine([each[number] for each in contributions])
                unpacked = unpack(total, specs) if len(specs) > 1 else [total]
            totals.update(zip(places, unpacked, strict=True))
        found = (totals[place] for place in range(len(totals)))
        # A constant share counts each worker, also one without data.
        count = tf.constant(float(len(contributions)))
        shares = dict.fromkeys(self._devices(), count)
        for update in self._updates:
            gradients: list[Any] = []
            for gradient in update.gradients:
                if isinstance(gradient, tf.IndexedSlices):
                    values, indices = next(found), next(found)
                    shape = tf.constant(tf.get_static_value(gradient.dense_shape), tf.int64)
                    gradients.append(tf.IndexedSlices(values, indices, shape))
                else:
                    gradients.append(None if gradient is None else next(found))
            is_sent = _is_sent(update)
            shares = {device: next(found) if is_sent else count for device in shares}
            update.apply(
                [
                    _divided(gradient, shares[variable.device])
                    for gradient, variable in zip(gradients, update.variables, strict=True)
                ]
            )
        for variable, change in self._changes:
            constant = _constant(variable, change)
            total = next(found) if constant is None else constant
            is_mean = _is_mean(variable)
            variable.assign_add(_divided(total, shares[variable.device]) if is_mean else total)

    def _parts(self) -> Iterator[Part]:
        """The tensors of the contribution: gradients times the share, shares, and changes."""
        for update in self._updates:
            for gradient, variable in zip(update.gradients, update.variables, strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    yield Part(variable, gradient.values, _joined)
                    yield Part(variable, gradient.indices, _joined)
                elif gradient is not None:
                    yield Part(variable, gradient, _sum)
            for variable in self._devices().values() if _is_sent(update) else ():
                yield Part(variable, update.share, _sum)
        for variable, change in self._changes:
            if _constant(variable, change) is None:
                yield Part(variable, change, _counted if _is_counter(variable) else _sum)

    def _devices(self) -> dict[str, tf.Variable]:
        """One of the changed variables on each ps."""
        updated = [each for update in self._updates for each in update.variables]
        return {each.device: each for each in [*updated, *(each for each, _ in self._changes)]}


def _is_sent(update: Update) -> bool:
    return tf.get_static_value(update.share) is None


def _is_mean(variable: tf.Variable) -> bool:
    return bool(variable.dtype.is_floating and not _is_summed(variable))


def _is_summed(variable: tf.Variable) -> bool:
    return bool(variable.aggregation is tf.VariableAggregation.SUM)


def _is_counter(variable: tf.Variable) -> bool:
    return bool(variable.dtype.is_integer and not _is_summed(variable))


def _constant(variable: tf.Variable, change: tf.Tensor) -> Any:
    """The value of a counter's change that is equal in all steps, and not sent; None for others."""
    return tf.get_static_value(change) if _is_counter(variable) else None


def _uses_updated_weights(use: str, variable: tf.Variable) -> UsageError:
    return UsageError(
        "train_step",
        received=f"a step that {use} {variable.name} after an optimizer has updated it",
        accepted="a step that updates its weights last, under parameter_server with --sync",
        remedy="Compute all gradients before the first update, and keep an average of the weights "
        "with the optimizer's use_ema; or train with --strategy=multi_worker_mirrored.",
    )


def _as_tensors(gradient: Any, variable: tf.Variable) -> Any:
    """A gradient with the static shapes of its variable; a custom step may pass a variable."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        # Without a static number of rows, which differs between workers.
        rows = tf.compat.v1.placeholder_with_default(
            tf.reshape(gradient.values, [-1, *variable.shape[1:]]), [None, *variable.shape[1:]]
        )
        indices = tf.compat.v1.placeholder_with_default(tf.reshape(gradient.indices, [-1]), [None])
        return tf.IndexedSlices(rows, indices, tf.constant(list(variable.shape)))
    return tf.ensure_shape(tf.convert_to_tensor(gradient), variable.shape)


def _divided(total: Any, share: tf.Tensor) -> Any:
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(total.values, share), total.indices, total.dense_shape)
    return None if total is None else tf.math.divide_no_nan(total, tf.cast(share, total.dtype))


_joined = partial(tf.concat, axis=0)


def _sum(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total += tensor
    return total


def _counted(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    total = _sum(tensors)  # A worker without data adds 0, but the update is one step.
    return tf.sign(total) * -(-tf.abs(total) // len(tensors))
