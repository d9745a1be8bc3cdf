"""The eager tensors, such as the variables, that a function uses."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def eager_captures(graph: Any) -> dict[Any, Any]:
    """The eager tensors that a graph captures, also through the graphs around it.

    Args:
      graph: the `tf.Graph` of a function, or any other one.

    Returns:
      Each tensor by the `ref()` of its placeholder in the graph.
    """
    outer = getattr(graph, "outer_graph", None)
    of_outer = {} if outer is None else eager_captures(outer)
    captures = {}
    for external, internal in getattr(graph, "captures", ()):
        eager = of_outer.get(external.ref()) if tf.is_symbolic_tensor(external) else external
        if eager is not None:
            captures[internal.ref()] = eager
    return captures
