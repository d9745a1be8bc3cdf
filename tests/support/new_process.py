"""Runs a script in a new process: logical devices, for example, can be set only once."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(setup: str, script: str) -> list[str]:
    """The words that a new process prints.

    Args:
      setup: lines that several scripts have in common.
      script: the other lines.
    """
    program = textwrap.dedent(setup) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
