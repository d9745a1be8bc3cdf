"""The pages for users: links, commands, flags and code say what is true."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tfdist.commands import cli
from tfdist.flags import JobFlags
from tfdist.strategies.table import TABLE

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in _FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The commands of `tfdist` on a page, as words."""
    found = []
    for code in blocks(page, "sh", "text", "console"):
        joined = code.replace("\\\n", " ")
        for line in joined.splitlines():
            line = line.removeprefix("$ ").partition("   #")[0].replace(" …", "")
            if line.startswith("tfdist ") and not line.startswith("tfdist: "):
                found.append(shlex.split(line)[1:])
    return found


def test_the_readme_is_for_the_first_ten_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text().replace("\n", " ")):
        if not target.startswith("http"):
            assert (page.parent / target.strip()).exists(), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


def test_there_are_commands_to_check() -> None:
    assert sum(len(commands(page)) for page in PAGES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path) -> None:
    for words in commands(page):
        arguments = cli._parser().parse_args(words)
        assert callable(arguments.run), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    names = re.findall(r"`((?:scripts|tests|examples|constraints)/[\w./-]+\w)`", page.read_text())
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_strategies_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(TABLE)


def test_the_page_of_flags_has_those_of_every_strategy() -> None:
    page = (ROOT / "docs" / "flags.md").read_text()
    for spec in TABLE.values():
        for flag in spec.flags:
            assert f"--{flag}" in page
            assert hasattr(JobFlags(), flag)
