"""Records the assignments of a worker's step to variables instead of making them.

with recorded_changes(variable, recorded):
    variable.assign(0.9 * variable)     # changes nothing outside this step
    variable.value()                    # 0.9 times the value on the ps

An assignment of each worker would change a variable on the ps several times per update. Instead, a
worker's step has the variable's new value to itself, and its change is part of the contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import all_replaced
from tfdist.strategies.parameter_server.transfers.contributions import Recorded
from tfdist.upstream import wrapped_variables


@contextmanager
def recorded_changes(variable: tf.Variable, recorded: Recorded) -> Iterator[None]:
    """Records assignments to `variable` in the graph of `recorded`; makes those in other graphs."""
    inner = wrapped_variables.innermost(variable)
    read = {name: getattr(inner, name) for name in ("value", "read_value")}
    # The new value minus the one on the ps; or the new value, after an `assign`.
    changes: list[tf.Tensor] = []
    values: list[tf.Tensor] = []

    def current(read: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
        @tf.autograph.experimental.do_not_convert
        def call() -> tf.Tensor:
            on_ps = read()
            if values:
                return tf.cast(values[-1], on_ps.dtype)
            return on_ps + tf.cast(changes[-1], on_ps.dtype) if changes else on_ps

        return call

    def recording(name: str, record: Callable[[Any], None]) -> Callable[..., Any]:
        assign = getattr(variable, name)

        @tf.autograph.experimental.do_not_convert
        def call(value: Any, *args: Any, **options: Any) -> Any:
            if tf.compat.v1.get_default_graph() is not recorded.graph:
                return assign(value, *args, **options)
            recorded.check_assignment(variable)
            cast = tf.convert_to_tensor(tf.cast(value, variable.dtype))
            is_known = cast.shape == variable.shape and cast.shape.is_fully_defined()
            record(cast if is_known else tf.ensure_shape(cast, variable.shape))
            return variable

        return call

    def add(change: tf.Tensor) -> None:
        if values:
            values.append(values[-1] + change)
        else:
            changes.append(changes[-1] + change if changes else change)

    methods = [
        *((inner, name, current(method)) for name, method in read.items()),
        (variable, "assign", recording("assign", values.append)),
        (variable, "assign_add", recording("assign_add", add)),
        (variable, "assign_sub", recording("assign_sub", lambda change: add(-change))),
    ]
    with all_replaced(methods):
        yield
    if values:
        recorded.change(variable, values[-1] - tf.cast(read["read_value"](), variable.dtype))
    elif changes:
        recorded.change(variable, changes[-1])
