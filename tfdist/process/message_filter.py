"""A program that copies C++ messages from stdin to stdout, but not those below a log level.

    python message_filter.py 2 < PIPE

Each write to the pipe must arrive separately (O_DIRECT), because a message can have several lines.
`tfdist.process.log_level` starts it. It imports little, to start fast.
"""

from __future__ import annotations

import os
import re
import sys

_SEVERITIES = b"IWEF"
# The prefixes of TensorFlow's own log function and of Abseil's.
_MESSAGE = re.compile(
    rb"(?:\d{4}-\d\d-\d\d [\d:.]+: ([IWEF]) |([IWEF])\d{4} [\d:.]+ +\d+ )[^ :]+:\d+\] (.*)",
    re.DOTALL,
)
_WITHOUT_SEVERITY = b"WARNING: All log messages before absl::InitializeLog() is called are written"
# Harmless messages at the level ERROR. Two libraries of TensorFlow register the same factories, and
# the driver of GPUs is not found on a machine without GPUs.
_HARMLESS = re.compile(
    rb"Unable to register cu(?:DNN|FFT|BLAS) factory: |"
    rb"failed call to cuInit: .*(?:\(303\)|CUDA_ERROR_NO_DEVICE)"
)


def is_hidden(message: bytes, level: int) -> bool:
    """Whether the filter drops a message.

    Args:
      message: what TensorFlow has written at once.
      level: the value of TF_CPP_MIN_LOG_LEVEL, from 1.
    """
    match = _MESSAGE.match(message)
    if match is None:
        return message.startswith(_WITHOUT_SEVERITY)
    below = _SEVERITIES.index(match[1] or match[2]) < level
    return below or _HARMLESS.match(match[3]) is not None


def main(level: int) -> None:
    while message := os.read(0, 1 << 16):
        if not is_hidden(message, level):
            os.write(1, message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
