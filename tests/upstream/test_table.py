"""The table of workarounds matches the modules and the canary tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tfdist.upstream import FIXES, PRIVATE_NAMES, Fix

pytestmark = pytest.mark.stacks("2.15", "2.21")


def test_every_module_is_in_the_table() -> None:
    files = Path(ROOT / "tfdist" / "upstream").glob("*.py")
    modules = sorted(path.stem for path in files if path.stem != "__init__")
    elsewhere = [fix.module for fix in FIXES if "." in fix.module]
    assert sorted([*modules, *elsewhere]) == sorted(
        [*(fix.module for fix in FIXES), *PRIVATE_NAMES]
    )
    assert all((ROOT / "tfdist" / f"{each.replace('.', '/')}.py").is_file() for each in elsewhere)


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.module)
def test_the_canary_of_each_fix_exists(fix: Fix) -> None:
    file, _, name = fix.canary.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
