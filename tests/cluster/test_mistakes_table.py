"""The mistakes of `mistakes_of_flags` and `mistakes_of_scripts`: right, or one sentence."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import keras_is_3
from tests.support import mistakes_of_flags, mistakes_of_scripts
from tests.support.mistakes import SCRIPT, Mistake
from tests.support.processes import ROOT, Tasks, run_by_hand
from tfdist.tools.commands import cli

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(120)]

MISTAKES: dict[str, Mistake] = {
    **mistakes_of_flags.COMMANDS,
    **mistakes_of_flags.CLUSTERS,
    **mistakes_of_scripts.SCRIPTS,
    **mistakes_of_scripts.JOBS,
}
RUN = {
    what: row
    for what, row in MISTAKES.items()
    if row.command or (not row.test and row.stack == ("newest" if keras_is_3() else "2.15"))
}
COMMANDS = [what for what, row in RUN.items() if row.command]
SCRIPTS = [what for what, row in RUN.items() if not row.command]
ERROR = re.compile(r"^(?:\[\S+\] )?tfdist: error: ", re.MULTILINE)


def test_it_has_a_hundred_rows_and_the_tests_that_it_names_exist() -> None:
    assert len(MISTAKES) >= 100
    for what, row in MISTAKES.items():
        file, _, name = row.test.partition("::")
        function, _, case = name.removesuffix("]").partition("[")
        text = (ROOT / "tests" / file).read_text() if file else ""
        assert not file or (f"def {function}(" in text and case in text), what


def check(row: Mistake, code: int, output: str) -> None:
    """Checks the exit code, and that the sentence is printed, once also by a job."""
    assert code == row.code, output
    assert re.search(row.prints, output, re.MULTILINE), output
    assert ("Traceback" in output) == row.traceback, output
    errors = len(ERROR.findall(output))
    assert errors <= 1, output
    assert errors or not code or row.traceback, output


@pytest.mark.parametrize("what", COMMANDS)
def test_a_command(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    try:
        code = cli.main([*RUN[what].command])
    except SystemExit as end:
        assert isinstance(end.code, int)
        code = end.code
    out, err = capfd.readouterr()
    check(RUN[what], code, out + err)
    assert not code or (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_script(what: str, tmp_path: Path) -> None:
    row, text, path = RUN[what], SCRIPT, tmp_path / "train.py"
    for old, new in row.edits:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    launcher = ["-m", "tfdist", "run", *row.job] if row.job is not None else []
    tasks: Tasks = {"task": ([sys.executable, *launcher, str(path), *row.flags], row.environ)}
    ended = run_by_hand(tmp_path / "log", tasks, deadline=40, copies=not row.is_new)["task"]
    check(row, ended.code, ended.output)
