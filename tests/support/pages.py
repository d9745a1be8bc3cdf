"""The user documentation, and the commands that it contains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?((?:tfdist|python) .*)$")


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
      page: the file name of the page.
      words: the words of the command, without a final `…`.
      output: the output that the page shows below the command.
    """

    page: str
    words: tuple[str, ...]
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in these languages."""
    return [code for language, code in _FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page that run `tfdist` or `python`."""
    for code in blocks(page, "sh", "text", "console"):
        lines = code.replace("\\\n", " ").splitlines()
        for index, line in enumerate(lines):
            match = _COMMAND.match(line)
            if match is None or line.startswith("tfdist: "):
                continue
            output = []
            for below in lines[index + 1 :] if line.startswith("$") else []:
                if below.startswith("$"):
                    break
                output.append(below)
            words = shlex.split(match[1].partition("   #")[0].replace("…", ""))
            yield Command(page.name, tuple(words), tuple(output))


def example(page: str, script: str) -> list[str]:
    """The words of the only command of `docs/PAGE` that runs `examples/SCRIPT`, with its path."""
    name = f"examples/{script}"
    (words,) = (
        command.words for command in commands(ROOT / "docs" / page) if name in command.words
    )
    return [str(ROOT / name) if word == name else word for word in words]


def readme_script() -> str:
    """The complete script of the README."""
    (script,) = (code for code in blocks(ROOT / "README.md", "python") if "__main__" in code)
    return script
