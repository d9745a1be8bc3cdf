"""Checks file names, flags and code in the documentation.

`tests/process/docs/test_site.py` checks the links, and `tests/cluster/test_docs_commands.py` runs
the commands.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts import flags_page
from tests.support.pages import PAGES, ROOT, blocks
from tfdist.config.strategies.table import rows

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_link_targets_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_code_has_no_syntax_errors(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_on_a_page_exist(page: Path) -> None:
    names = re.findall(r"`((?:scripts|tests|examples|constraints)/[\w./-]+\w)`", page.read_text())
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_readme_lists_all_strategies() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(rows())


def test_the_flags_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "flags.md").read_text()
    assert flags_page.with_table(page) == page, "run: python -m scripts.flags_page"


@pytest.mark.parametrize("name", ["last_steps", "habits"])
def test_the_cases_on_the_page_of_exactness_exist(name: str) -> None:
    page = (ROOT / "docs" / "exactness.md").read_text()
    rows = re.findall(rf"`test_{name}`: ([\w, ]+)", page)
    named = {case.strip() for row in rows for case in row.split(", ")}
    source = (ROOT / "tests" / "support" / f"{name}.py").read_text()
    cases = set(re.findall(r'CASES\["(\w+)"\]|^    "(\w+)": Case\(', source, re.MULTILINE))
    assert named
    assert named <= {one or other for one, other in cases}
