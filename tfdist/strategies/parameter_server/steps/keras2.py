"""Finds the function of one step in a train or test function of Keras 2.

    step = single_step(train_function)    # step(iterator) -> logs

With `steps_per_execution` above 1, Keras 2 gives the coordinator a function with a loop over steps.
An execution has its own loop, which also stops at the end of the data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


@functools.cache
def single_step(function: Any) -> Callable[[Any], Any]:
    """The function of one step, from the closure of Keras's function.

    Args:
      function: the `tf.function` of several steps, which Keras 2 schedules.
    """
    variables = inspect.getclosurevars(function.python_function).nonlocals
    return partial(variables["step_function"], variables["self"])
