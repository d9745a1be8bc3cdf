"""Packs the small tensors that a step sends between a worker and the ps into few messages.

with packed_transfers():
    logs = train_step(batch)

TensorFlow sends each variable that a step reads, each time that the step reads it, and each
gradient in a separate message. For small tensors a message costs more than its bytes. This module
concatenates the tensors that can be sent from one device to another at the same time, sends them
once, and splits them on the other side.

ResNet-20 trains 1.16 times as fast with it, with two workers on two cores (docs/benchmarks.md).
`--nopack_transfers` turns it off.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from tfdist.strategies.captures import eager_captures
from tfdist.strategies.parameter_server.transfers.packing import pack, packs_of, unpack

# Operations that may wait for another operation of the step without an edge in the graph.
_WAITS = re.compile("Mutex|Queue|Barrier|Stage")


@dataclass
class Transfers:
    """The tensors that a step exchanges with the ps; filled when its operations are packed.

    Attributes:
      received: tensors that the ps send before the step has sent anything: the weights.
      sent: tensors that are sent to the ps: the gradients.
    """

    received: list[tf.Tensor] = field(default_factory=list)
    sent: list[tf.Tensor] = field(default_factory=list)


@contextmanager
def packed_transfers() -> Iterator[Transfers]:
    """Packs the transfers of the operations created in this context; use it while tracing.

    Does not pack transfers inside called functions and branches, and packs nothing if there are
    locks or queues: `Transfers` is then empty.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    transfers = Transfers()
    yield transfers
    operations, device_of = graph.get_operations()[before:], _devices(graph)
    if any(_WAITS.search(operation.type) for operation in operations):
        return
    for route, uses in _routes(operations, device_of, _transfers(operations, device_of)).items():
        values = {use.value: use.tensor for use in uses}
        keys, tensors = list(values), list(values.values())
        received: dict[Any, tf.Tensor] = {}
        for places in packs_of(tensors):
            sent = _send(route, [tensors[place] for place in places])
            received.update(zip([keys[place] for place in places], sent, strict=True))
        for use in uses:
            use.operation._update_input(use.position, received[use.value])
        if _is_ps(route.target):
            transfers.sent += tensors
        elif route.transfers == 0:
            transfers.received += received.values()


class _Route(NamedTuple):
    """The key of tensors that can be sent together.

    Attributes:
      source, target: devices; empty for the device of the step.
      transfers: the number of transfers that must happen before this one, one after the other. A
        pack waits for all of its tensors, so none of them may depend on another one of the pack.
    """

    source: str
    target: str
    transfers: int


class _Use(NamedTuple):
    """An input that an operation reads from another device.

    Attributes:
      value: a key that is equal for inputs with the same value.
    """

    operation: Any
    position: int
    tensor: Any
    value: Any


def _transfers(operations: Sequence[Any], device_of: Callable[[Any], str]) -> dict[Any, int]:
    """For each operation, the maximum number of transfers on any path to it."""
    transfers: defaultdict[Any, int] = defaultdict(int)
    has_changed = True
    # Operations nearly always depend only on earlier ones, so the second round changes nothing.
    while has_changed:
        has_changed = False
        # In TensorFlow, an operation on a resource waits for earlier operations on it, and a
        # stateful operation without a resource (None) for earlier ones of its kind. In this count,
        # reads also wait for reads.
        of_resource: defaultdict[Any, int] = defaultdict(int)
        for operation in operations:
            device = device_of(operation)
            resources = [tensor.ref() for tensor, _ in _resources(operation)]
            if not resources and operation.op_def.is_stateful:
                resources = [None]
            number = max(
                transfers[operation],
                *(transfers[other] for other in operation.control_inputs),
                *(of_resource[resource] for resource in resources),
                *(
                    transfers[tensor.op] + _is_sent(tensor, device_of(tensor.op), device)
                    for tensor in operation.inputs
                ),
                0,
            )
            has_changed = has_changed or number != transfers[operation]
            transfers[operation] = number
            of_resource.update(dict.fromkeys(resources, number))
    return transfers


def _routes(
    operations: Sequence[Any], device_of: Callable[[Any], str], transfers: dict[Any, int]
) -> dict[_Route, list[_Use]]:
    """The inputs from other devices, grouped by what can be sent together."""
    routes: defaultdict[_Route, list[_Use]] = defaultdict(list)
    writes: defaultdict[Any, int] = defaultdict(int)
    read: dict[Any, Any] = {}
    for operation in operations:
        for tensor, kind in _resources(operation):
            if operation.type == "ReadVariableOp":
                waits_for = frozenset(operation.control_inputs)
                read[operation] = tensor.ref(), writes[tensor.ref()], waits_for
            elif kind != auto_control_deps.ResourceType.READ_ONLY:
                writes[tensor.ref()] += 1
        target = device_of(operation)
        for position, tensor in enumerate(operation.inputs):
            source = device_of(tensor.op)
            # A constant is placed where it is used, and an argument is not computed here.
            is_made = tensor.op.type not in ("Const", "Placeholder")
            if is_made and _is_sent(tensor, source, target):
                use = _Use(operation, position, tensor, read.get(tensor.op, tensor.ref()))
                routes[_Route(source, target, transfers[tensor.op])].append(use)
    return routes


def _resources(operation: Any) -> list[tuple[Any, Any]]:
    """The resources of an operation, in TensorFlow's order, with the kind of access to each."""
    return list(auto_control_deps._get_resource_inputs(operation))


def _is_sent(tensor: Any, source: str, target: str) -> bool:
    """Whether a tensor is sent from a ps or to a ps."""
    return tensor.dtype != tf.resource and source != target and (_is_ps(source) or _is_ps(target))


def _send(route: _Route, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    if len(tensors) == 1:
        return tensors
    with tf.control_dependencies(None):
        with tf.device(route.source or None):
            packed = pack(tensors)
        with tf.device(route.target or None):
            return unpack(packed, tensors)


def _devices(graph: Any) -> Callable[[Any], str]:
    """Returns a function that maps an operation of a graph to its device.

    An operation on a variable runs on the device of the variable.
    """
    captures = eager_captures(graph)

    @functools.cache
    def device_of(operation: Any) -> str:
        # A function, a branch or a loop runs where it is called, regardless of its captures.
        for tensor in () if _calls_function(operation) else operation.inputs:
            captured = captures.get(tensor.ref()) if tensor.dtype == tf.resource else None
            if captured is not None and _is_ps(captured.device):
                return str(captured.device)
        if _is_ps(operation.device):
            return str(operation.device)
        # Device names of the same worker's operations can be partial.
        device = tf.DeviceSpec.from_string(operation.device)
        return str(device.replace(replica=None, task=None).to_string())

    return device_of


def _is_ps(device: str) -> bool:
    return "/job:ps/" in device


def _calls_function(operation: Any) -> bool:
    return any(attribute.type in ("func", "list(func)") for attribute in operation.op_def.attr)
