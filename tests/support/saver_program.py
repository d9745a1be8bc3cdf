"""Saves checkpoints without end and is killed in the midst of it, again and again.

    saver_program.py DIRECTORY KILLS

Each round a child restores, saves and reports the number of each finished save; it is killed at a
time that goes through the length of a save. A JSON line says what each child found: the number that
it went on from, and the last that the child before it had reported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import tfdist  # isort: skip  # noqa: F401

import tensorflow as tf

from tfdist.checkpoints import output_directory
from tfdist.checkpoints.checkpointer import Checkpointer, Position

_SAVES = 4


def save_without_end(directory: Path, reports: int) -> None:
    model = tf.keras.Sequential([tf.keras.Input([300]), tf.keras.layers.Dense(3000)])
    checkpointer = Checkpointer(model, directory, writes=True, keep=3)
    output_directory.remove_leftovers(directory)
    number = checkpointer.restore()
    if number and float(model.weights[1][0]) != number:
        raise AssertionError(f"checkpoint {number} has the weights of {model.weights[1][0]}")
    while True:
        os.write(reports, f"{number}\n".encode())
        number += 1
        model.weights[1].assign([number] * 3000)
        checkpointer.save(Position(number), number)


def main(directory: Path, kills: int) -> None:
    last = 0
    for kill in range(kills):
        reader, writer = os.pipe()
        # Forked before TensorFlow has started a thread: its import takes longer than all else.
        child = os.fork()
        if not child:
            os.close(reader)
            save_without_end(directory, writer)
        os.close(writer)
        reports, times = [], []
        with os.fdopen(reader) as lines:
            for line in lines:
                reports.append(int(line))
                times.append(time.monotonic())
                if len(reports) == _SAVES:
                    break
            if len(reports) < _SAVES:
                sys.exit(f"child {kill} ended by itself: {os.waitpid(child, 0)}")
            # From the beginning of a save to its end, by and by.
            until = times[-1] + (times[-1] - times[-2]) * kill / kills
            while time.monotonic() < until:
                select.select([], [], [], max(0.0, until - time.monotonic()))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reports += [int(line) for line in lines]
        left = sorted(path.name for path in directory.iterdir())
        print(json.dumps({"began": reports[0], "before": last, "left": left}), flush=True)
        last = reports[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
