"""Changes what a function of TensorFlow or Keras does, for the whole process.

    def run_longer(run, strategy, fn, args=(), **options): …

    apply_wrapper(tf.distribute.Strategy, "run", run_longer)

What is changed until `fit` or a block ends is for `tfdist.compat.replaced`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_wrapped: set[Callable[..., Any]] = set()


def apply_wrapper(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Wraps a function; wrapping it again changes nothing.

    Args:
      owner: a module, or a class.
      name: the name of its function, or of its method.
      call: takes the function that it replaces and its arguments, for a method with `self`.
    """
    own = getattr(owner, name)
    if own in _wrapped:
        return

    # Its module is that of `own`, so that AutoGraph treats it in the same way.
    @functools.wraps(own)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return call(own, *args, **kwargs)

    _wrapped.add(wrapped)
    setattr(owner, name, wrapped)
