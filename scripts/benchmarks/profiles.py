"""What each task of a training spends an epoch on, by TensorFlow's profiler.

profiles.follow(directory, "worker:0")     # in every task, before it trains or serves
model.fit(…, callbacks=[profiles.Epoch(directory, epoch=2)])      # in the one that leads
profiles.read(directory)                   # afterwards: [Profile(task="worker:0", …), …]
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_LOOK_SECONDS = 0.01
_FOLLOWED = "epoch"
_KINDS = {
    "convolutions": ("Conv2D", "MatMul"),
    "normalization": ("BatchNorm",),
}
_OTHER_KERNELS = "other kernels"
#: The kinds of kernels, in the order in which they are shown.
KINDS = (*_KINDS, _OTHER_KERNELS)


@dataclass(frozen=True)
class Profile:
    """Seconds of one task within the epoch.

    Attributes:
      task: its name.
      wall: from the epoch's beginning to its end.
      cpu: that all of its threads computed.
      kernels: by kind, that kernels of TensorFlow took.
    """

    task: str
    wall: float
    cpu: float
    kernels: dict[str, float]


class Epoch(tf.keras.callbacks.Callback):
    """Has the tasks that follow profile one epoch.

    Args:
      directory: one that all tasks share.
      epoch: which, from 0.
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
    """Profiles, from a thread, the epoch that an `Epoch` of another task or of this one says."""
    threading.Thread(target=_follow, args=(Path(directory), task)).start()


def read(directory: Path) -> list[Profile]:
    """The profiles of all tasks that have written theirs, by name."""
    paths = sorted(directory.glob("*.json"))
    return [Profile(**json.loads(path.read_text())) for path in paths]


def _follow(directory: Path, task: str) -> None:
    followed = directory / _FOLLOWED
    while not followed.exists():
        if not threading.main_thread().is_alive():
            return
        time.sleep(_LOOK_SECONDS)
    traces = directory / f"traces-{task}"
    tf.profiler.experimental.start(str(traces))
    wall, cpu = time.monotonic(), _cpu_seconds()
    while followed.exists():
        time.sleep(_LOOK_SECONDS)
    wall, cpu = time.monotonic() - wall, _cpu_seconds() - cpu
    tf.profiler.experimental.stop()
    (trace,) = traces.glob("plugins/profile/*/*.xplane.pb")
    profile = Profile(task, wall, cpu, shared_seconds(_kernel_changes(trace)))
    beside = directory / f"{task}.beside"
    beside.write_text(json.dumps(asdict(profile)))
    beside.rename(directory / f"{task}.json")


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def shared_seconds(changes: Iterable[tuple[float, str, int]]) -> dict[str, float]:
    """Seconds of each kind; kernels that run at the same time, as on one core, share it.

    Args:
      changes: when, in picoseconds, how many more kernels of a kind run from then on.
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
    # TensorFlow moves this module with its versions.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for plane in xplane_pb2.XSpace.FromString(trace.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                # A kernel is `its name:its operation`; much else is `Its::Parts`.
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
