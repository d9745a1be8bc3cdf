"""The log of a job's starts and interruptions, `events.jsonl` in the output directory.

    events.add(output, events.START, epoch=2, step=626, strategy="horovod")
    for event in events.read(output): ...

Each line is a JSON object with `event`, `time` (seconds since 1970), `epoch` (those that are
complete; not of Estimators) and `step` (the updates so far). The chief writes it.
"""

from __future__ import annotations

import time
from typing import Any

from tfdist.storage import output_directory
from tfdist.storage.output_directory import OutputDirectory

#: The chief begins to train, from the beginning or from a checkpoint; it has saved and ends, to be
#: started again; the training is complete.
START, PREEMPTED, COMPLETE = "start", "preempted", "complete"


def add(output: OutputDirectory, event: str, *, step: int, **facts: Any) -> None:
    """Adds an event.

    Args:
      output: the output directory.
      event: one of the constants above.
      step: the number of updates of the weights.
      facts: what else is known, as JSON, such as `epoch`.

    Raises:
      OutputError: it could not be written.
    """
    record = {"event": event, "time": time.time(), "step": step, **facts}
    output_directory.append_json_line(output.events, record)


def read(output: OutputDirectory) -> list[dict[str, Any]]:
    """The events, the oldest first."""
    return [
        record
        for record in output_directory.read_json_lines(output.events)
        if isinstance(record.get("step"), int) and isinstance(record.get("time"), float)
    ]
