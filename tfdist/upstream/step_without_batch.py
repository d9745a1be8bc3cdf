"""Makes a step wait for its batch, so that it has no effect after the end of the data.

In a `tf.function` that reads a batch and calls `tf.distribute.Strategy.run`, an operation of the
step waits for the batch only if it uses it. Keras finds the end of data of unknown cardinality in
such a call, and in each epoch the optimizer counted one update too many, random generators moved
on, and metrics counted a batch of static shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes `tf.distribute.Strategy.run`; a second call changes nothing."""
    apply_wrapper(tf.distribute.Strategy, "run", _run)


def _run(run: Callable[..., Any], strategy: Any, fn: Any, *args: Any, **options: Any) -> Any:
    if tf.executing_eagerly():
        return run(strategy, fn, *args, **options)
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    results = run(strategy, fn, *args, **options)
    values = tf.nest.flatten((args, options), expand_composites=True)
    batch = [each.op for each in values if tf.is_tensor(each) and each.graph is graph]
    for operation in graph.get_operations()[before:]:
        # More dependencies, such as those of constants, would make a short step slower.
        if operation._is_stateful and operation.type != "ReadVariableOp":
            operation._add_control_inputs(batch)
    return results
