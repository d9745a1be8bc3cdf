"""Mistakes and habits of new users, by what they did: how to repeat each one, and what must follow.

A row runs `tfdist` in this process, `SCRIPT` with some lines changed, or such a script as a job, or
it names the test that does so. A mistake ends with one sentence; a habit that is right trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCRIPT = """
import tfdist
import os
import numpy as np
import tensorflow as tf

os.chdir(os.path.dirname(os.path.abspath(__file__)))
points = np.random.default_rng(1).normal(size=[64, 4]).astype("float32")
sums = points.sum(1, keepdims=True)


def build_model(job):
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    return model


def data():
    return tf.data.Dataset.from_tensor_slices((points, sums)).batch(8)


@tfdist.main
def main(job):
    history = job.fit(build_model, data, epochs=1, output_dir="run1", verbose=0)
    print("trained", len(history.epoch), "epochs")


if __name__ == "__main__":
    tfdist.run(main)
"""

TRAINED = "trained 1 epochs"


@dataclass(frozen=True)
class Mistake:
    """One row.

    Attributes:
      prints: a regular expression of what is printed: the sentence, or what shows that it is right.
      code: the exit code.
      command: the words after `tfdist`, which runs in this process; else the script runs.
      edits: lines of `SCRIPT`, or parts of lines, and what the user wrote there.
      flags: the arguments of the script.
      environ: variables of the environment.
      job: the flags of `tfdist run`; None for a script that is started with `python`.
      is_new: whether a process runs the script that has not imported TensorFlow yet.
      traceback: whether the script's own error is printed, with its traceback.
      stack: the stack that runs the row.
      test: the test that covers the row instead, as `file::function`, and in brackets the case.
    """

    prints: str = ""
    code: int = 2
    command: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    job: tuple[str, ...] | None = None
    is_new: bool = False
    traceback: bool = False
    stack: str = "newest"
    test: str = ""


def script(prints: str, *edits: tuple[str, str], **options: object) -> Mistake:
    """A script that one process runs."""
    return Mistake(prints, edits=edits, **options)  # type: ignore[arg-type]


def tested(test: str) -> Mistake:
    """A row of another test."""
    return Mistake(test=test)
