"""Leaves out what tells a reader of a job's output nothing new; a task's log file has everything.

    noise = Noise(told)                        # of one task
    shown = [line for line in lines if noise.keeps(line)]

When a task is lost, the runtime of each other task says so in up to 30 lines, beside tfdist's one.
All tasks make the same mistake, and report it.
"""

from __future__ import annotations

import re

# The prefix of an error of TensorFlow's C++ code, and what it says of a lost peer.
_LOST = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:.]+: |(?=[EWF]\d{4} ))[EWF](?:\d{4} [\d:.]+ +\d+)? [^ :]+:\d+\] .*"
    r"(?:UNAVAILABLE|CANCELLED|ABORTED|INTERNAL|DEADLINE_EXCEEDED|failed to connect|Socket closed|"
    r"[Cc]onnection reset|heartbeat|error from (?:the )?coordination service|Connection refused)"
    # The coordinator of parameter servers, which gives the step to another worker.
    r"|ERROR:tensorflow:Worker /job:\S+ failed with "
)
_MORE = re.compile(
    r"Additional GRPC error information |:\{\"|:UNKNOWN:|\t?@? +0x[0-9a-f]+ "
    r"|The error could be from a previous operation\. "
    r"|This could happen if the remote target has been disconnected "
)


class Noise:
    """Decides for one task which lines of its output are shown.

    Args:
      told: the errors that a task of this start has reported; changed by this object.
    """

    def __init__(self, told: set[str]) -> None:
        self._told = told
        self._hides = False

    def keeps(self, line: str) -> bool:
        """Whether to show the next line."""
        if line.startswith("tfdist: error: "):
            is_new = line not in self._told
            self._told.add(line)
            return is_new
        self._hides = bool(_LOST.match(line)) or (self._hides and bool(_MORE.match(line)))
        return not self._hides
