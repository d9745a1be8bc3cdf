"""Ends a wait for threads when they have ended.

`tf.distribute.Strategy.run` traces a function in a thread for each local replica, and then calls
`tf.train.Coordinator.join`, which checks once a second whether the threads have ended. With Python
3.13 and one core, they have not at the first check: each trace waited for a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper

# Between two checks, in seconds.
_PERIOD = 0.01


def apply() -> None:
    """Changes `tf.train.Coordinator.join`; a second call changes nothing."""
    apply_wrapper(tf.train.Coordinator, "join", _join)


def _join(
    join: Callable[..., Any],
    coordinator: tf.train.Coordinator,
    threads: Iterable[threading.Thread] | None = None,
    *args: Any,
    **options: Any,
) -> None:
    threads = None if threads is None else list(threads)
    for thread in threads or ():
        while thread.is_alive() and not coordinator.should_stop():
            thread.join(_PERIOD)
    join(coordinator, threads, *args, **options)
