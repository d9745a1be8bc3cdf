"""The table of workarounds in docs/upstream.md matches the modules and the canary tests."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.stacks("2.15", "2.21")

PAGE = (ROOT / "docs" / "upstream.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
LAST = PAGE.strip().splitlines()[-1]


def test_every_module_is_on_the_page() -> None:
    files = (ROOT / "tfdist" / "upstream").glob("*.py")
    modules = {path.stem for path in files if path.stem != "__init__"}
    fixes = {row[0].strip("`") for row in ROWS}
    elsewhere = {name for name in fixes if "." in name}
    assert modules == (fixes - elsewhere) | {*re.findall("`([a-z0-9_]+)`", LAST)}
    assert all((ROOT / "tfdist" / f"{name.replace('.', '/')}.py").is_file() for name in elsewhere)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_the_canary_of_each_fix_exists(row: list[str]) -> None:
    assert len(row) == 5
    file, _, name = row[4].strip("`").partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text()
