#!/usr/bin/env python
"""Draws what a terminal shows while a command runs, as SVG.

    scripts/capture.py --seconds=12 docs/panel.svg tfdist run --workers=2 train.py

The command is ended after the picture, unless it has ended by itself.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.terminal import Terminal  # noqa: E402

_COLORS = {"brown": "yellow"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=10.0, help="when the picture is taken")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("picture", type=Path, help="the SVG file")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    with Terminal(options.command, rows=options.rows, columns=options.columns) as terminal:
        until = time.monotonic() + options.seconds
        while time.monotonic() < until and terminal.read():
            pass
        lines = terminal.styled()
    options.picture.write_text(svg(lines, options.columns, " ".join(options.command)))
    return 0


def svg(lines: Sequence[Sequence[tuple[str, str, bool]]], columns: int, title: str) -> str:
    """A picture of lines, each of which has characters with their colors and weights."""
    while lines and not "".join(character for character, _, _ in lines[-1]).strip():
        lines = lines[:-1]
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        text = Text(no_wrap=True)
        for (color, is_bold), characters in groupby(line, key=itemgetter(1, 2)):
            name = _COLORS.get(color, color)
            style = Style(color=None if name == "default" else _of_rich(name), bold=is_bold)
            text.append("".join(character for character, _, _ in characters), style)
        console.print(text)
    # Without the fonts of another server.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL)


def _of_rich(color: str) -> str:
    """pyte has names for eight colors, and six digits for others."""
    return f"#{color}" if re.fullmatch("[0-9a-f]{6}", color) else color


if __name__ == "__main__":
    sys.exit(main())
