"""Profiles some steps in all tasks, for TensorBoard: `--profile_steps=100:110`.

All tasks write to one session, `logs/train/plugins/profile/steps_100_110`, a file each. A task that
sees its steps profiles itself. The chief profiles the tasks that serve, for about as long.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import log
from tfdist.storage.output_directory import OutputDirectory, copy_whole
from tfdist.training.state import TrainingState
from tfdist.training.steps import Logs, StepFollower

_WAITS, _RUNS, _ENDED = "waits", "runs", "ended"
_LEAST_SECONDS = 0.5


class StepProfile(StepFollower):
    """The callback of `--profile_steps`, in each training task.

    It has the profile of this task, and on the chief those of the tasks that serve.

    Args:
      state: knows the tasks.
      output: the output directory.
      steps: the number of updates before the first step, and after the last one.
    """

    def __init__(
        self, state: TrainingState, output: OutputDirectory, steps: tuple[int, int]
    ) -> None:
        super().__init__(state, output)
        self._first, self._last = steps
        name = f"steps_{self._first}_{self._last}"
        self._session = output.logs / "train" / "plugins" / "profile" / name
        self._stage = _WAITS
        self._directory = tempfile.mkdtemp(prefix="tfdist-profile-")
        self._tracing: threading.Thread | None = None
        self._begun: tuple[float, int] | None = None
        self._mark = ExitStack()

    def before_steps(self, batch: int) -> None:
        steps, was_running = self._state.steps, self._stage == _RUNS
        self._look(steps)
        # Keras 2 marks its steps itself, and has begun this one already.
        marks = not was_running or keras_compat.is_keras_3(self.model)
        if self._stage == _RUNS and marks:
            mark = tf.profiler.experimental.Trace("train", step_num=steps, _r=1)
            self._mark.enter_context(mark)

    def after_steps(self, batch: int, logs: Logs | None) -> None:
        self._mark.close()

    def before_request(self, steps: Callable[[], Sequence[int]], count: int) -> None:
        # Workers are a few steps behind the requests.
        self._look(self._state.steps)

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self._stage == _RUNS:
            self._stop()
        elif self._stage == _WAITS and self._state.is_chief:
            steps = f"{self._first} to {self._last}"
            log(f"warning: --profile_steps: this training has made none of the steps {steps}")
        shutil.rmtree(self._directory, ignore_errors=True)

    def _look(self, steps: int) -> None:
        """Begins or ends the profile, after this number of updates."""
        self._begun = self._begun or (time.monotonic(), steps)
        if self._stage == _WAITS and self._first <= steps < self._last:
            self._start(steps, *self._begun)
        elif self._stage == _RUNS and steps >= self._last:
            self._stop()

    def _start(self, steps: int, begun: float, before: int) -> None:
        self._stage = _RUNS
        servers = self._servers()
        with _warning("cannot begin the profile"):
            tf.profiler.experimental.start(self._directory)
        if servers and self._state.is_chief:
            per_step = (time.monotonic() - begun) / max(steps - before, 1)
            seconds = max(_LEAST_SECONDS, per_step * (self._last - steps))
            addresses = ",".join(f"grpc://{address}" for address in servers)
            self._tracing = threading.Thread(
                target=_trace, args=(addresses, self._directory, seconds), daemon=True
            )
            self._tracing.start()

    def _stop(self) -> None:
        self._stage = _ENDED
        with _warning("cannot write the profile"):
            tf.profiler.experimental.stop()
            if self._tracing is not None:
                self._tracing.join()
            self._collect()
            if self._state.is_chief:
                log(f"profiled the steps {self._first} to {self._last}: {self._session}")

    def _servers(self) -> Mapping[str, str]:
        """The tasks that serve, by their addresses."""
        role = self._state.role
        tasks = [task for task in role.cluster.tasks() if role.spec.serves(role.cluster, task)]
        return {role.cluster.address(task): str(task) for task in tasks}

    def _collect(self) -> None:
        """Copies the profiles to the session, under the names of their tasks."""
        names = {address.replace(":", "_"): task for address, task in self._servers().items()}
        own = str(self._state.strategy.task)
        for path in Path(self._directory).glob("plugins/profile/*/*.xplane.pb"):
            name = names.get(path.name.removesuffix(".xplane.pb"), own).replace(":", "_")
            copy_whole(path, self._session / f"{name}.xplane.pb")


def _trace(addresses: str, directory: str, seconds: float) -> None:
    with _warning("cannot profile the tasks that serve"):
        tf.profiler.experimental.client.trace(addresses, directory, int(1000 * seconds))


@contextmanager
def _warning(what: str) -> Iterator[None]:
    """Logs an exception as a warning: a profile that fails does not end the training."""
    try:
        yield
    except Exception as error:
        log(f"warning: {what}: {error}")
