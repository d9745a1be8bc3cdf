"""Takes the calls with which a train step updates its weights, from an optimizer of any Keras.

def record(gradients, variables, update): ...      # update(other_gradients) updates the variables

replace(optimizer, *taking_updates(optimizer, record))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream import keras3_optimizer

Update = Callable[[list[Any]], Any]


def taking_updates(
    optimizer: Any, take: Callable[[list[Any], list[Any], Update], None]
) -> tuple[str, Callable[..., Any]]:
    """Makes a method for an optimizer that passes its calls on instead of updating weights.

    Args:
      optimizer: a Keras optimizer, which does not change.
      take: takes the gradients, some of which may be None; their variables; and a function that
        updates these variables with other gradients.

    Returns:
      The name of the optimizer's own method, and the one to replace it.
    """
    # In Keras 3, `apply_gradients` calls `apply`.
    name = "apply" if keras_compat.is_keras_3(optimizer) else "apply_gradients"
    own = getattr(optimizer, name)

    @tf.autograph.experimental.do_not_convert
    def call(given: Iterable[Any], *args: Any, **options: Any) -> Any:
        given = list(given)
        if name == "apply":
            variables = keras3_optimizer.variables_of(optimizer, *args, **options)
            take(given, variables, lambda values: own(values, variables))
        else:
            gradients, variables = [pair[0] for pair in given], [pair[1] for pair in given]

            def update(values: list[Any]) -> Any:
                return own(list(zip(values, variables, strict=True)), *args, **options)

            take(gradients, variables, update)
        return optimizer.iterations

    return name, call
