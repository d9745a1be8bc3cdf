"""Session hooks for training an Estimator: logging the speed, and preemption.

hook = ExamplesPerSecondHook(batch_size=job.global_batch_size(32))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tfdist.coordination.preemption import Preemption

Context: TypeAlias = tf.compat.v1.train.SessionRunContext
Values: TypeAlias = tf.compat.v1.train.SessionRunValues


class ExamplesPerSecondHook(tf.compat.v1.train.SessionRunHook):
    """Prints the number of examples per second that the whole cluster trains on.

    The global step counts the updates of all workers. Each update uses `batch_size` examples, from
    one worker (asynchronous) or from all workers (synchronous). The chief prints lines like
    `Average examples/sec: 612.3 (640.1), step = 200`: the average since the start, and in
    parentheses since the last line.

    Args:
      batch_size: examples per global step: `job.global_batch_size(per_replica)`.
      every_n_steps: global steps between two lines.
      clock: returns seconds.
    """

    chief_only = True

    def __init__(
        self,
        batch_size: int,
        every_n_steps: int = 100,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batch_size = batch_size
        self._every = every_n_steps
        self._clock = clock

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()
        self._first: tuple[int, float] | None = None

    def before_run(self, run_context: Context) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Context, run_values: Values) -> None:
        step, now = int(run_values.results), self._clock()
        if self._first is None:
            # Exclude the first step, which traces and places the graph.
            self._first = self._last = (step, now)
        elif step - self._last[0] >= self._every:
            average, current = (
                (step - before) * self._batch_size / (now - then)
                for before, then in (self._first, self._last)
            )
            print(f"Average examples/sec: {average:.1f} ({current:.1f}), step = {step}")
            self._last = (step, now)


class PreemptionHook(tf.compat.v1.train.SessionRunHook):
    """Ends the session, which then saves, at the common last step of a preempted job.

    Args:
      preemption: this task's `Preemption`, which is `watched` while the session runs.

    Attributes:
      is_in_step: whether the session makes a step, and not what other hooks do after one: a
        checkpoint or an evaluation.
    """

    def __init__(self, preemption: Preemption) -> None:
        self.is_in_step = False
        self._preemption = preemption

    def before_run(self, run_context: Context) -> None:
        if not self._preemption.begin_step():
            # The session handles StopIteration as the end of the input and skips this step.
            raise StopIteration
        self.is_in_step = True

    def after_run(self, run_context: Context, run_values: Values) -> None:
        self.is_in_step = False
        if self._preemption.should_stop():
            run_context.request_stop()
