"""Measures how much of a step the stages of a replica wait for each other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.strategies.in_graph.grid import Grid

_NOT_BEGUN = -1.0


class Clock:
    """The time that one stage has worked, and the time from its first work in a step to the last.

    Args:
      device: the device of the stage, whose machine has the clock.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._worked = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            self._passed = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            self._step_began = tf.Variable(_NOT_BEGUN, trainable=False, dtype=tf.float64)
        # TensorFlow would run all timestamps of a graph in one order, on all workers. The functions
        # have variables, so it orders only those of this clock.
        self._functions = {
            name: tf.function(function, autograph=False)
            for name, function in (
                ("begin", self._begin),
                ("end", self._end),
                ("end_step", self._end_step),
            )
        }

    def begin(self) -> Any:
        """Begins a piece of work; returns an operation of the current graph."""
        return self._functions["begin"]()

    def end(self) -> Any:
        """Ends a piece of work; returns an operation of the current graph."""
        return self._functions["end"]()

    def end_step(self) -> None:
        """Ends a step."""
        self._functions["end_step"]()

    @property
    def worked(self) -> float:
        """The seconds of work."""
        return float(self._worked.numpy())

    @property
    def passed(self) -> float:
        """The seconds of all steps."""
        return float(self._passed.numpy())

    def _begin(self) -> tf.Tensor:
        now = tf.timestamp()
        self._worked.assign_sub(now)
        is_first = self._step_began < 0
        self._step_began.assign(tf.where(is_first, now, self._step_began))
        return now

    def _end(self) -> tf.Tensor:
        now = tf.timestamp()
        self._worked.assign_add(now)
        return now

    def _end_step(self) -> None:
        self._passed.assign_add(tf.timestamp() - self._step_began)
        self._step_began.assign(_NOT_BEGUN)


class IdleShare:
    """The share of the time of a replica's stages in which they do no work.

    The time of a step is that between the begin of the first call in stage 0 and the end of the
    last gradient there. It does not include the update of the weights.

    Args:
      grid: the workers; the stages of the first replica are measured.
      microbatches: the number of parts of a replica's batch.

    Attributes:
      clocks: the clock of each stage.
      bound: the least share, that of equal stages (Huang et al. 2019, section 2.3).
    """

    def __init__(self, grid: Grid, microbatches: int) -> None:
        stages = grid.num_stages
        self.clocks = [Clock(grid.device(0, stage)) for stage in range(stages)]
        self.bound = (stages - 1) / (microbatches + stages - 1)

    @property
    def measured(self) -> float:
        """The share in the steps so far; 0 before the first step."""
        total = self.clocks[0].passed * len(self.clocks)
        return 1 - sum(clock.worked for clock in self.clocks) / total if total else 0.0
