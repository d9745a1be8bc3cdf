"""Detects that a graph only adds to a variable, and finds what it adds.

addend(0.5 * x + variable, variable)             # 0.5 * x
addend(tf.maximum(variable, x), variable)        # None
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

# Operations whose result is as much the variable's value as their first input is.
_SAME = {"Cast", "Identity", "Reshape"}
# Operations whose result does not depend on the elements of their input.
_SHAPES = {"OnesLike", "Rank", "Shape", "Size", "ZerosLike"}


def addend(value: tf.Tensor, variable: tf.Variable) -> tf.Tensor | None:
    """The tensor whose addition to the variable gives `value`; None if there is none.

    Args:
      value: a symbolic tensor of the variable's dtype.
      variable: a variable, which `value` may read.
    """
    handle = value.graph.capture(variable.handle)
    reads = [op for op in handle.consumers() if op.type == "ReadVariableOp"]
    # The variable's coefficient in each tensor; None if the tensor is not a sum.
    counts: dict[int, int | None] = {id(read.outputs[0]): 1 for read in reads}
    for op in _dependents(reads):
        count = _count(op.type, [counts.get(id(each), 0) for each in op.inputs])
        counts.update({id(output): count for output in op.outputs})
    if counts.get(id(value)) != 1:
        return None
    if value.op.type == "AddV2":
        for summand, other in (value.op.inputs, reversed(value.op.inputs)):
            if summand.op in reads:
                return other
    return value - reads[0].outputs[0]


def _count(kind: str, inputs: list[int | None]) -> int | None:
    """The variable's coefficient in an operation's output, from those in its inputs."""
    if kind in _SHAPES:
        return 0
    counts = [each for each in inputs if each is not None]
    if len(counts) < len(inputs):
        return None
    if kind in ("Add", "AddN", "AddV2"):
        return sum(counts)
    if kind == "Sub":
        return counts[0] - counts[1]
    if kind in ("Select", "SelectV2"):
        return counts[1] if counts[0] == 0 and counts[1] == counts[2] else None
    return counts[0] if kind in _SAME else None


def _dependents(sources: Iterable[tf.Operation]) -> list[tf.Operation]:
    """The operations that depend on others of the same graph, each after its inputs."""
    found: set[tf.Operation] = set()
    waiting = list(sources)
    for op in waiting:
        consumers = {consumer for tensor in op.outputs for consumer in tensor.consumers()}
        waiting += consumers - found
        found |= consumers
    return [op for op in waiting[0].graph.get_operations() if op in found] if waiting else []
