"""The line of the user's own code in a stack: the last one that is in no package."""

from __future__ import annotations

import site
import sys
import traceback
from pathlib import Path

_PACKAGES = (*site.getsitepackages(), str(Path(__file__).parents[1]), sys.base_prefix, "<frozen")


def line_in(stack: traceback.StackSummary) -> str:
    """`train.py:8: SCALE = tf.constant(1.0)`; empty if all of the stack is in packages."""
    for frame in reversed(stack):
        if not frame.filename.startswith(_PACKAGES):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return ""


def calling_line() -> str:
    """The line of the user's code that has called this function, through packages."""
    return line_in(traceback.extract_stack()) or "a package"
