"""Summarizes a job that has ended in five lines.

summary = Summary(started=time.time())
summary.saw(rows, seconds)                   # while the job runs
summary.failed("worker:1 was killed by signal 9 (Killed)")
print("\\n".join(summary.lines(code=0, now=time.time())))
"""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.coordination.liveness.activity import TRAINING, State
from tfdist.errors import EXIT_OK, EXIT_PREEMPTED
from tfdist.process import quantities
from tfdist.storage.output_directory import OutputDirectory, last_json_line, saved_checkpoints
from tfdist.tools.watch.panel import examples_per_second
from tfdist.tools.watch.tasks import Row


class Summary:
    """Collects the facts for the summary of a job.

    Args:
      started: when the job began, in seconds since 1970.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._training = 0.0
        self._rate = 0.0
        self._state: State | None = None
        self._failures: list[str] = []

    def saw(self, rows: Sequence[Row], seconds: float) -> None:
        """Records what the tasks do at this moment.

        Args:
          rows: the tasks, the chief first.
          seconds: since the last moment.
        """
        state = rows[0].state
        if state is None:
            return
        self._state = state
        self._training += seconds if state.doing == TRAINING else 0.0
        self._rate = examples_per_second(rows) or self._rate

    def failed(self, how: str) -> None:
        """Records that a task has failed; `how` says in words what happened to it."""
        self._failures.append(how)

    def lines(self, code: int, now: float) -> list[str]:
        """The lines of the summary; none if the chief has reported no training.

        Args:
          code: the exit code of the job.
          now: seconds since 1970.
        """
        state = self._state
        if state is None or not state.output:
            return []
        seconds = now - self._started
        # The task may have ended before it could be seen to.
        last = last_json_line(OutputDirectory(state.output).metrics)
        last = last if last.get("time", 0) >= self._started else {}  # Of an earlier job.
        steps = last.get("step", state.resumed + state.steps)
        rate = last.get("examples_per_second") or self._rate
        speed = f"{quantities.rate(rate)} examples/s" if rate else "unknown"
        if not rate and "steps_per_second" in last:  # Of an Estimator.
            speed = f"{quantities.rate(last['steps_per_second'])} steps/s"
        loss = last.get("loss", state.loss)
        known = quantities.value(loss) if isinstance(loss, float) else ""
        ending = f", loss {known}" if known else ""
        share = self._training / seconds if seconds > 0 else 0.0
        failures = self._failures or ["none"]
        return [
            f"result    {_result(code)}",
            f"speed     {speed}; step {steps:,}{ending}",
            f"time      {quantities.duration(seconds)}, {share:.0%} of it in training steps",
            f"saved     {_saved(OutputDirectory(state.output), self._started)}",
            f"failures  {'; '.join(failures[-3:])}"
            + (f" ({len(failures) - 3} earlier)" if len(failures) > 3 else ""),
        ]


def _result(code: int) -> str:
    if code == EXIT_OK:
        return "complete"
    if code == EXIT_PREEMPTED:
        return "preempted and saved; start the job again to resume"
    return f"failed with code {code}"


def _saved(output: OutputDirectory, started: float) -> str:
    """The newest checkpoint, and the model if it was exported after `started`."""
    found = saved_checkpoints(output)
    parts = [f"checkpoint {found[-1][1]}"] if found else ["no checkpoint"]
    # An interrupted job exports none, but an earlier one may have.
    has_model = output.has_model_since(started)
    return ", ".join([*parts, f"model {output.saved_model}"] if has_model else parts)
