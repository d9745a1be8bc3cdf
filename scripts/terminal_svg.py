"""Draws what a terminal shows, as SVG.

picture = svg(terminal.styled(), columns=110, title="tfdist run")
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich.console import Console
from rich.style import Style
from rich.text import Text

# Names of pyte that rich does not know.
_COLORS = {"brown": "yellow"}


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
