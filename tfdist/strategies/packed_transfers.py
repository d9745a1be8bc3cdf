"""What a step moves between a worker and the ps, together in place of tensor by tensor.

with packed_transfers():
    logs = train_step(batch)

TensorFlow sends by itself each variable that a step reads, as often as it reads it, and each
gradient. With small ones that costs more than the bytes: here all that can leave one device for
another at the same time is concatenated there, sent once, and split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.strategies.packing import is_small, pack, unpack


@contextmanager
def packed_transfers() -> Iterator[None]:
    """In a function that is being traced: packs the transfers of the operations made within.

    Only tensors of static shape are packed; those of functions that are called within are not.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    for route, uses in _transfers(graph, graph.get_operations()[before:]).items():
        if len({use.value for use in uses}) > 1:
            _send_packed(graph, route, uses)


class _Route(NamedTuple):
    """What may be sent together.

    Attributes:
      source, target: devices; empty for wherever the step runs.
      transfers: how many have to come before, one after the other. What is packed waits for all
        of the pack, and so must not be needed for any of it.
    """

    source: str
    target: str
    transfers: int
    dtype: tf.DType


class _Use(NamedTuple):
    """An input of an operation on another device.

    Attributes:
      value: what is the same for inputs of the same value.
    """

    operation: Any
    position: int
    tensor: Any
    value: Any


def _transfers(graph: Any, operations: list[Any]) -> dict[_Route, list[_Use]]:
    """The inputs that operations have from other devices, by what may be sent together."""
    devices = _Devices(graph)
    routes: defaultdict[_Route, list[_Use]] = defaultdict(list)
    # For each operation the greatest number of transfers on any way to it. An operation on a
    # resource, or a stateful one without any (None), TensorFlow lets wait for those before it.
    transfers: defaultdict[Any, int] = defaultdict(int)
    of_resource: defaultdict[Any, int] = defaultdict(int)
    writes: defaultdict[Any, int] = defaultdict(int)
    read: dict[Any, Any] = {}
    for operation in operations:
        target = devices.of(operation)
        resources = [tensor.ref() for tensor in operation.inputs if tensor.dtype == tf.resource]
        if not resources and operation.op_def.is_stateful:
            resources = [None]
        before = [transfers[other] for other in operation.control_inputs]
        before += [of_resource[resource] for resource in resources]
        for position, tensor in enumerate(operation.inputs):
            source, number = devices.of(tensor.op), transfers[tensor.op]
            if tensor.dtype == tf.resource or not devices.are_apart(source, target):
                before.append(number)
                continue
            before.append(number + 1)
            # A constant is placed where it is used, and an argument is not made here.
            if tensor.op.type not in ("Const", "Placeholder") and is_small(tensor):
                use = _Use(operation, position, tensor, read.get(tensor.op, tensor.ref()))
                routes[_Route(source, target, number, tensor.dtype)].append(use)
        transfers[operation] = max(before, default=0)
        for resource in resources:
            of_resource[resource] = transfers[operation]
            if operation.type == "ReadVariableOp":
                read[operation] = resource, writes[resource]
            else:
                writes[resource] += 1
    return routes


def _send_packed(graph: Any, route: _Route, uses: list[_Use]) -> None:
    tensors = {use.value: use.tensor for use in uses}
    with graph.as_default(), tf.control_dependencies(None):
        with tf.device(route.source or None):
            packed = pack(tensors.values())
        with tf.device(route.target or None):
            received = dict(zip(tensors, unpack(packed, list(tensors.values())), strict=True))
    for use in uses:
        use.operation._update_input(use.position, received[use.value])


class _Devices:
    """Where operations of a function run: TensorFlow puts those on a variable where that is."""

    def __init__(self, graph: Any) -> None:
        self._captures = _eager_captures(graph)
        self._found: dict[Any, str] = {}

    def of(self, operation: Any) -> str:
        """The device as a string."""
        if operation not in self._found:
            self._found[operation] = self._find(operation)
        return self._found[operation]

    def are_apart(self, source: str, target: str) -> bool:
        """Whether they are different ones, of which at least one is a ps."""
        return source != target and (_is_ps(source) or _is_ps(target))

    def _find(self, operation: Any) -> str:
        for tensor in operation.inputs:
            captured = self._captures.get(tensor.ref()) if tensor.dtype == tf.resource else None
            if captured is not None and _is_ps(captured.device):
                return str(captured.device)
        if _is_ps(operation.device):
            return str(operation.device)
        # Operations of the same worker differ in how much of its name they have.
        device = tf.DeviceSpec.from_string(operation.device)
        return str(device.replace(replica=None, task=None).to_string())


def _is_ps(device: str) -> bool:
    return "/job:ps/" in device


def _eager_captures(graph: Any) -> dict[Any, Any]:
    """By what stands for it in `graph`, a tensor from outside of all functions."""
    outer = graph.outer_graph
    of_outer = _eager_captures(outer) if getattr(outer, "captures", None) else {}
    found = {}
    for external, internal in graph.captures:
        eager = external if not tf.is_symbolic_tensor(external) else of_outer.get(external.ref())
        if eager is not None:
            found[internal.ref()] = eager
    return found
