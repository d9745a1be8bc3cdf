"""Profiles one epoch of every task of a training, with TensorFlow's profiler.

profiles.follow(directory, "worker:0")     # in every task, before it trains or serves
model.fit(…, callbacks=[profiles.Epoch(directory, epoch=2)])      # in the chief
profiles.read(directory)                   # afterwards: [Profile(task="worker:0", …), …]
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from scripts.benchmarks.marks import cpu_seconds

_POLL_SECONDS = 0.01
_FOLLOWED = "epoch"
_KINDS = {
    "convolutions": ("Conv2D", "MatMul"),
    "normalization": ("BatchNorm",),
}
_OTHER_KERNELS = "other kernels"
#: The kinds of kernels, in the order of the table.
KINDS = (*_KINDS, _OTHER_KERNELS)


@dataclass(frozen=True)
class Profile:
    """The profile of one task in the epoch, in seconds.

    Attributes:
      task: the name of the task.
      wall: the duration of the epoch.
      cpu: the CPU time of all threads.
      kernels: the time of TensorFlow's kernels, by kind.
    """

    task: str
    wall: float
    cpu: float
    kernels: dict[str, float]


class Epoch(tf.keras.callbacks.Callback):
    """Makes all tasks that called `follow` profile one epoch.

    Args:
      directory: a directory that all tasks share.
      epoch: the epoch, from 0.
    """

    def __init__(self, directory: str, epoch: int) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._file = Path(directory, _FOLLOWED)
        self._epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch == self._epoch:
            self._file.touch()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._file.unlink(missing_ok=True)


def follow(directory: str, task: str) -> None:
    """Starts a thread that profiles the epoch selected by the `Epoch` callback of any task."""
    threading.Thread(target=_follow, args=(Path(directory), task)).start()


def read(directory: Path) -> list[Profile]:
    """The profiles that tasks have written, sorted by task."""
    paths = sorted(directory.glob("*.json"))
    return [Profile(**json.loads(path.read_text())) for path in paths]


def _follow(directory: Path, task: str) -> None:
    followed = directory / _FOLLOWED
    while not followed.exists():
        if not threading.main_thread().is_alive():
            return
        time.sleep(_POLL_SECONDS)
    traces = directory / f"traces-{task}"
    tf.profiler.experimental.start(str(traces))
    wall, cpu = time.monotonic(), cpu_seconds()
    while followed.exists():
        time.sleep(_POLL_SECONDS)
    wall, cpu = time.monotonic() - wall, cpu_seconds() - cpu
    tf.profiler.experimental.stop()
    (trace,) = traces.glob("plugins/profile/*/*.xplane.pb")
    profile = Profile(task, wall, cpu, shared_seconds(_kernel_changes(trace)))
    temporary = directory / f"{task}.temporary"
    temporary.write_text(json.dumps(asdict(profile)))
    temporary.rename(directory / f"{task}.json")


def shared_seconds(changes: Iterable[tuple[float, str, int]]) -> dict[str, float]:
    """The seconds of each kind; kernels that run at the same time share the time.

    Args:
      changes: a time in picoseconds, a kind, and the change in the number of its running kernels.
    """
    running, found, last = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0.0), 0.0
    for now, changing, change in sorted(changes):
        for kind, kernels in running.items():
            if kernels:
                found[kind] += (now - last) / 1e12 * kernels / sum(running.values())
        running[changing] += change
        last = now
    return found


def _kernel_changes(trace: Path) -> Iterator[tuple[float, str, int]]:
    # The path of this module depends on the TensorFlow version.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for plane in xplane_pb2.XSpace.FromString(trace.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                # The name of a kernel event is `name:operation`; other events are named `A::B`.
                operation = plane.event_metadata[event.metadata_id].name.rpartition(":")[-1]
                if op_def_registry.get(operation) is not None:
                    begin = 1000 * line.timestamp_ns + event.offset_ps
                    yield begin, _kind(operation), 1
                    yield begin + event.duration_ps, _kind(operation), -1


def _kind(operation: str) -> str:
    for kind, names in _KINDS.items():
        if any(name in operation for name in names):
            return kind
    return _OTHER_KERNELS
