"""The help of the commands."""

from __future__ import annotations

import re

import pytest

from tfdist.tools.commands.cli import main

pytestmark = pytest.mark.stacks("2.15")


@pytest.mark.parametrize("command", ["run", "exec", "check", "render jobset", "plot", "test"])
def test_the_help_has_each_flag_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    flags = [flag for line in lines for flag in re.findall(r"--\w[\w-]*", line[:26])]
    assert flags
    assert len({flag.replace("-", "_") for flag in flags}) == len(flags)
    if command == "run":
        common = ["strategy", "workers", "ps", "chief", "evaluator", "max_restarts", "log_dir"]
        assert flags[: len(common)] == [f"--{name}" for name in common]
