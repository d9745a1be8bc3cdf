"""Kills a process while it saves checkpoints, at many different moments of a save.

    saver_program.py DIRECTORY KILLS

In each round, a child process restores the newest checkpoint, saves new ones and reports the number
of each finished save. The moment of the kill moves through the duration of a save from round to
round. The program prints one JSON line per child: the number that it restored, the last number
that the previous child reported, and the files that are left.
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

from tfdist.storage import files as checkpoint_files
from tfdist.storage.checkpointer import Checkpointer, Position

_SAVES = 4


def save_forever(directory: Path, reports: int) -> None:
    model = tf.keras.Sequential([tf.keras.Input([300]), tf.keras.layers.Dense(3000)])
    checkpointer = Checkpointer(model, directory, writes=True, keep=3)
    checkpoint_files.remove_leftovers(directory)
    number = checkpointer.restore()
    if number and float(model.weights[1][0]) != number:
        raise AssertionError(f"checkpoint {number} has the weights of {model.weights[1][0]}")
    while True:
        os.write(reports, f"{number}\n".encode())
        number += 1
        model.weights[1].assign([number] * 3000)
        checkpointer.save(Position(number), number)
        checkpointer.wait()


def main(directory: Path, kills: int) -> None:
    last = 0
    for kill in range(kills):
        reader, writer = os.pipe()
        # Fork before TensorFlow starts a thread: importing it again would take most of the time.
        child = os.fork()
        if not child:
            os.close(reader)
            save_forever(directory, writer)
        os.close(writer)
        reports, times = [], []
        with os.fdopen(reader) as lines:
            for line in lines:
                reports.append(int(line))
                times.append(time.monotonic())
                if len(reports) == _SAVES:
                    break
            if len(reports) < _SAVES:
                sys.exit(f"child {kill} exited early: {os.waitpid(child, 0)}")
            # The kill moves from the beginning of a save to its end.
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
