"""What a step moves between a worker and the ps, together in place of tensor by tensor.

with packed_transfers():
    logs = train_step(batch)

TensorFlow sends separately each variable that a step reads, each time that it reads it, and each
gradient. With small ones that costs more than the bytes: here what can leave one device for another
at the same time is concatenated there, sent once, and split.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from tfdist.strategies.parameter_server.packing import in_packs, pack, unpack

# Operations that may wait for another one of the step, which the graph does not tell.
_WAITS = re.compile("Mutex|Queue|Barrier|Stage")


@contextmanager
def packed_transfers() -> Iterator[None]:
    """In a function that is being traced: packs the transfers of the operations made within.

    What functions and branches that are called within move by themselves is not packed, and nothing
    is where there are locks or queues.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    operations, devices = graph.get_operations()[before:], _Devices(graph)
    if any(_WAITS.search(operation.type) for operation in operations):
        return
    for route, uses in _routes(operations, devices, _transfers(operations, devices)).items():
        values = {use.value: use.tensor for use in uses}
        received = dict(
            zip(values, in_packs(partial(_send, route), list(values.values())), strict=True)
        )
        for use in uses:
            use.operation._update_input(use.position, received[use.value])


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


class _Use(NamedTuple):
    """An input of an operation on another device.

    Attributes:
      value: what is the same for inputs of the same value.
    """

    operation: Any
    position: int
    tensor: Any
    value: Any


def _transfers(operations: Sequence[Any], devices: _Devices) -> dict[Any, int]:
    """For each operation the greatest number of transfers on any way to it."""
    transfers: defaultdict[Any, int] = defaultdict(int)
    has_changed = True
    # Nearly always operations wait for earlier ones alone, and the second round changes nothing.
    while has_changed:
        has_changed = False
        # TensorFlow lets an operation on a resource wait for those that were made before, and so a
        # stateful one without any (None). Here reads wait for reads, too.
        of_resource: defaultdict[Any, int] = defaultdict(int)
        for operation in operations:
            device = devices.of(operation)
            resources = [tensor.ref() for tensor, _ in _resources(operation)]
            if not resources and operation._is_stateful:
                resources = [None]
            number = max(
                transfers[operation],
                *(transfers[other] for other in operation.control_inputs),
                *(of_resource[resource] for resource in resources),
                *(
                    transfers[tensor.op] + _is_sent(tensor, devices.of(tensor.op), device)
                    for tensor in operation.inputs
                ),
                0,
            )
            has_changed = has_changed or number != transfers[operation]
            transfers[operation] = number
            of_resource.update(dict.fromkeys(resources, number))
    return transfers


def _routes(
    operations: Sequence[Any], devices: _Devices, transfers: dict[Any, int]
) -> dict[_Route, list[_Use]]:
    """The inputs that operations have from other devices, by what may be sent together."""
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
        target = devices.of(operation)
        for position, tensor in enumerate(operation.inputs):
            source = devices.of(tensor.op)
            # A constant is placed where it is used, and an argument is not made here.
            is_made = tensor.op.type not in ("Const", "Placeholder")
            if is_made and _is_sent(tensor, source, target):
                use = _Use(operation, position, tensor, read.get(tensor.op, tensor.ref()))
                routes[_Route(source, target, transfers[tensor.op])].append(use)
    return routes


def _resources(operation: Any) -> list[tuple[Any, Any]]:
    """The resources of an operation as TensorFlow orders them, and whether it only reads them."""
    return list(auto_control_deps._get_resource_inputs(operation))


def _is_sent(tensor: Any, source: str, target: str) -> bool:
    """Whether a tensor goes from one device to another, of which one is a ps."""
    return tensor.dtype != tf.resource and source != target and (_is_ps(source) or _is_ps(target))


def _send(route: _Route, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    if len(tensors) == 1:
        return tensors
    with tf.control_dependencies(None):
        with tf.device(route.source or None):
            packed = pack(tensors)
        with tf.device(route.target or None):
            return unpack(packed, tensors)


class _Devices:
    """Where the operations of a function run: TensorFlow puts those on a variable where that is."""

    def __init__(self, graph: Any) -> None:
        self._captures = _eager_captures(graph)
        self._found: dict[Any, str] = {}

    def of(self, operation: Any) -> str:
        """The device as a string."""
        if operation not in self._found:
            self._found[operation] = self._find(operation)
        return self._found[operation]

    def _find(self, operation: Any) -> str:
        # A function, a branch or a loop runs where it is called, whatever it captures.
        for tensor in () if _calls_function(operation) else operation.inputs:
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


def _calls_function(operation: Any) -> bool:
    return any(attribute.type in ("func", "list(func)") for attribute in operation.op_def.attr)


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
