"""Watches this task's steps, answers other tasks, and writes the job's hang report.

    reporter = Reporter("worker:1", job="0f3a…", token=token, write=write_text, read=read_text)
    reporter.listen(hosts)                          # answers other tasks from now on
    reporter.endpoints = {"worker:0": ("10.0.0.1", 40123)}
    reporter.watch(progress, Path("/shared/run1"), step_timeout=None, is_chief=False)
    ...                                             # ends the process if the job makes no step
    reporter.end_watch()

The chief writes the hang report. If it does not, another task does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tfdist.coordination.liveness import activity, hang_report
from tfdist.coordination.liveness.activity import STARTING, Activity
from tfdist.coordination.liveness.endpoint import Endpoint
from tfdist.coordination.liveness.task_report import TaskReport
from tfdist.coordination.liveness.watchdog import PATIENCE, Watchdog
from tfdist.coordination.stores.kv_store import KeyValueStore
from tfdist.errors import HangError, OutputError, log
from tfdist.process import excepthook, thread_stacks
from tfdist.process.deadline import within

# For the chief to write the hang report.
_CHIEF_SECONDS = 20.0
_POLL_SECONDS = 0.5
_WRITE_SECONDS = 10.0
# The names of the functions of Keras and of Estimators that train.
_TRAINING_FUNCTIONS = ("fit", "train", "train_and_evaluate")


class Reporter:
    """Reports what this task does, and watches its steps.

    Args:
      task: the name of this task.
      job: equal in all tasks of the job.
      token: the job's token.
      write: writes a file of the output directory whole.
      read: returns the text of one that was written after a time, in seconds since 1970; empty if
        there is none.

    Attributes:
      activity: what this task does.
      endpoints: by task, the host and the port where it answers; the chief is the first.
    """

    def __init__(
        self,
        task: str,
        *,
        write: Callable[[Path, str], None],
        read: Callable[[Path, float], str],
        job: str = "",
        token: str = "",
    ) -> None:
        self.activity = Activity(task, job)
        self.endpoints: dict[str, tuple[str, int]] = {}
        self._task = task
        self._token = token
        self._write_text, self._read_text = write, read
        self._endpoint: Endpoint | None = None
        self._watchdog: Watchdog | None = None
        self._look_up: Callable[[], None] = lambda: None
        self._warned_at = 0.0
        self._is_chief = self._waits_for_lost = False

    @property
    def port(self) -> int:
        """Where this task answers; 0 if it does not."""
        return self._endpoint.port if self._endpoint else 0

    def listen(self, hosts: Iterable[str]) -> None:
        """Answers other tasks from now on.

        Args:
          hosts: the hosts of the cluster, which are answered without a token.
        """
        self._endpoint = Endpoint(self._token, hosts, self._report)

    def meet(self, store: KeyValueStore, host: str, peers: Iterable[str]) -> None:
        """Like `listen`, for tasks without a startup barrier: they find each other in a store.

        Args:
          store: a store that they share, for the endpoints.
          host: where the others reach this task.
          peers: the names of all tasks, the chief first.
        """
        self.listen(())
        store.put(_key(self._task), f"{host} {self.port}")

        def look_up() -> None:
            for peer in peers:
                with suppress(Exception):  # Each store raises errors of its own.
                    host, _, port = (store.get(_key(peer), 0.0) or "").rpartition(" ")
                    if peer != self._task and host:
                        self.endpoints[peer] = host, int(port)

        self._look_up = look_up

    def watch(
        self,
        progress: Callable[[], int],
        output: Path,
        *,
        step_timeout: float | None,
        is_chief: bool,
        is_in_step: Callable[[], bool] | None = None,
        waits_for_lost: bool = False,
    ) -> None:
        """Ends this process when the job makes no step, while this thread is in `fit`.

        Args:
          progress: returns a number that changes with every step of this task.
          output: the output directory.
          step_timeout: as in `Watchdog`; 0 does not watch.
          is_chief: whether this task is the chief.
          is_in_step: as in `Watchdog`.
          waits_for_lost: whether the training waits for the return of a task that was lost.
        """
        self.end_watch()
        self._is_chief, self._waits_for_lost = is_chief, waits_for_lost
        self.activity.describe(output=str(output.absolute()))
        self.activity.enter(STARTING)
        if step_timeout == 0:
            return
        thread = threading.get_ident()
        has_left = False

        def look() -> int:
            # An exception in `fit` calls no callback that could end the watch. Later, another
            # `fit` may run.
            nonlocal has_left
            has_left = has_left or not thread_stacks.runs(thread, _TRAINING_FUNCTIONS)
            return progress()

        def on_silence(seconds: float) -> None:
            if not has_left and not thread_stacks.is_debugged():
                self._on_silence(seconds, watchdog.limit, output)

        watchdog = self._watchdog = Watchdog(
            self.activity, look, step_timeout, on_silence, is_in_step=is_in_step
        )
        watchdog.start()

    def end_watch(self) -> None:
        """Ends what `watch` has begun."""
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None

    def report_loss(self, what: str) -> None:
        """Writes the report when another task was lost, before this process ends.

        Args:
          what: what has happened, as a sentence.
        """
        output = self.activity.state.output
        chief = next(iter(self.endpoints), "")
        # If all tasks did so, they would ask each other while they end.
        if output and (self._is_chief or (chief and chief in what)):
            self._look_up()
            self._write(Path(output), "a task was lost", what, self._collect())

    def _on_silence(self, seconds: float, limit: float, output: Path) -> None:
        began = time.time()
        self._look_up()
        if not self._is_chief:
            chief = dict(list(self.endpoints.items())[:1])
            found = hang_report.collect(chief, self._token)
            if self._waits_for(found, seconds, limit):
                return
            # With asynchronous updates, the chief may train on.
            is_hanging = hang_report.longest_silence(found) >= limit / 2
            since = began - _CHIEF_SECONDS
            if is_hanging and (what := within(_CHIEF_SECONDS, lambda: self._read(output, since))):
                excepthook.end(HangError("", what, seconds, _place(output)))
        reports = self._collect()
        if self._waits_for(reports, seconds, limit):
            return
        culprit = hang_report.find_culprit(reports)
        where = self._write(output, f"no step for {seconds:.0f} s", str(culprit), reports)
        excepthook.end(HangError(culprit.task, str(culprit), seconds, where))

    def _collect(self) -> dict[str, TaskReport | None]:
        """The reports of all tasks, this one included."""
        found = hang_report.collect(self.endpoints, self._token)
        if None in found.values():
            # A task that was restarted has another endpoint than its predecessor.
            job = self.activity.state.job
            machine = activity.tasks_of_this_machine()
            local = {each.state.task: each for each in machine if each.state.job == job}
            for task in [task for task, report in found.items() if report is None]:
                if task in local:
                    found[task] = TaskReport.of_process(local[task])
        return {**found, self._task: self._report()}

    def _write(self, output: Path, what: str, finding: str, reports: hang_report.Reports) -> str:
        """Writes the report to the output directory, or to stderr if that fails; returns where."""
        text = hang_report.text(what, finding, reports)

        def write() -> bool:
            with suppress(OSError, OutputError):
                if not output.is_dir():
                    return False  # It is gone, and must not be made again.
                self._write_text(output / hang_report.FILE_NAME, text)
                return True
            return False

        if within(_WRITE_SECONDS, write):
            return _place(output)
        print(text, file=sys.stderr, flush=True)
        return "above"

    def _read(self, output: Path, since: float) -> str:
        """Waits for the chief's hang report; returns what it says, or an empty text."""
        deadline = time.monotonic() + _CHIEF_SECONDS
        while time.monotonic() < deadline:
            if text := self._read_text(output / hang_report.FILE_NAME, since):
                return hang_report.finding(text)
            time.sleep(_POLL_SECONDS)
        return ""

    def _waits_for(self, reports: hang_report.Reports, seconds: float, limit: float) -> bool:
        """Whether a task does something that may take longer than a step."""
        busy = hang_report.busy(reports, waits_for_lost=self._waits_for_lost)
        if not busy or seconds >= PATIENCE * limit:
            return False
        if time.monotonic() - self._warned_at > limit:
            self._warned_at = time.monotonic()
            log(f"no step for {seconds:.0f} s: {busy}")
        return True

    def _report(self) -> TaskReport:
        return TaskReport.of_this_process(self.activity)


def _key(task: str) -> str:
    return f"tfdist_report.{task}"


def _place(output: Path) -> str:
    return f"in {output / hang_report.FILE_NAME}"
