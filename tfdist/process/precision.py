"""`--precision`: the dtype in which Keras's layers compute.

    chosen = precision.choose("auto")        # measures; Precision("mixed_bfloat16", 1.9)
    chosen.use()                             # before the model is made

The weights, and so the checkpoints, stay float32 (Micikevicius et al. 2018, arXiv:1710.03740).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FLOAT32, BFLOAT16, FLOAT16, AUTO = "float32", "mixed_bfloat16", "mixed_float16", "auto"
CHOICES = (FLOAT32, BFLOAT16, FLOAT16, AUTO)

#: How many times as fast as float32 `auto` requires bfloat16 to be: casts cost time, too.
LEAST_RATIO = 1.2
_SECONDS = 0.25


@dataclass(frozen=True)
class Precision:
    """The precision of a training.

    Attributes:
      policy: the name of Keras's policy.
      ratio: how many times as fast as float32 bfloat16 was; None if nothing was measured.
    """

    policy: str
    ratio: float | None = None

    def __str__(self) -> str:
        if self.ratio is None:
            return self.policy
        return f"{self.policy} (bfloat16 is {self.ratio:.1f} times as fast as float32 here)"

    def use(self) -> None:
        """Sets Keras's policy; leaves a policy that the script has set if this one is float32."""
        if self.policy != FLOAT32:
            import tensorflow as tf

            tf.keras.mixed_precision.set_global_policy(self.policy)


def choose(precision: str) -> Precision:
    """The precision that a flag asks for.

    Args:
      precision: a policy, or `auto`, which measures for a quarter of a second.
    """
    if precision != AUTO:
        return Precision(precision)
    ratio = bfloat16_ratio()
    return Precision(BFLOAT16 if ratio >= LEAST_RATIO else FLOAT32, ratio)


def bfloat16_ratio(
    seconds: float = _SECONDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The speed of matrix products in bfloat16, relative to float32, on this task's device.

    Args:
      seconds: how long to measure.
      clock: returns seconds, from any starting point.
    """
    import tensorflow as tf

    fastest: dict[tf.DType, float] = {}
    matrix = tf.random.stateless_uniform([512, 512], seed=(1, 2))
    end = clock() + seconds
    # In turn, because other processes may take the core.
    while len(fastest) < 2 or clock() < end:
        for dtype in (tf.float32, tf.bfloat16):
            values = tf.cast(matrix, dtype)
            started = clock()
            tf.linalg.matmul(values, values).numpy()
            elapsed = clock() - started
            fastest[dtype] = min(elapsed, fastest.get(dtype, elapsed))
    return fastest[tf.float32] / fastest[tf.bfloat16]
