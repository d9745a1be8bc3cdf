"""The completion of the command in real shells, and the examples in the help of each command."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.tools.commands import cli

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

# Sets the variables that readline sets when the user presses Tab at the end of LINE.
BASH = """
eval "$(register-python-argcomplete tfdist)"
COMP_WORDS=($LINE) COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete tfdist
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "register-python-argcomplete --shell fish tfdist | source; complete -C $LINE"
# `_describe` of zsh works in its line editor alone.
ZSH = """
autoload -Uz compinit is-at-least && compinit -u -d "$ZDOTDIR/dump"
eval "$(register-python-argcomplete --shell zsh tfdist)"
_describe() { print -l -- ${(P)2} }
words=(${(z)LINE}) BUFFER=$LINE CURSOR=${#LINE}
_python_argcomplete
"""
SHELLS = {
    "bash": ["bash", "-c", BASH],
    "zsh": ["zsh", "-f", "-c", ZSH],
    "fish": ["fish", "-c", FISH],
}


def complete(shell: str, line: str, directory: Path) -> list[str]:
    """What a shell offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed, and scripts/test may not install it")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "LINE": line, "HOME": str(directory)}
    done = subprocess.run(
        SHELLS[shell],
        cwd=directory,
        env={**environ, "ZDOTDIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return [line.partition("\t")[0].partition(":")[0].strip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_completes_commands_flags_strategies_and_scripts(shell: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for line, expected in {
        "tfdist ru": {"run"},
        "tfdist run --max": {"--max_restarts", "--max_workers"},
        "tfdist run --strategy ho": {"horovod"},
        "tfdist run --workers=2 tr": {"train.py"},
    }.items():
        assert set(complete(shell, line, tmp_path)) == expected, line


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands_of(command)


def test_the_help_of_each_command_has_examples_that_it_accepts() -> None:
    for command in commands_of(cli._parser()):
        if command.prog in ("tfdist render", "tfdist data", "tfdist horovod"):
            continue  # Their commands have examples.
        examples = command.examples  # type: ignore[attr-defined]
        assert examples, command.prog
        for example in examples:
            assert f"  {example}\n" in command.format_help()
            words = shlex.split(example.replace(">", "|").partition("|")[0], comments=True)
            given = words[words.index("tfdist") + 1 :] if "tfdist" in words else None
            if given is not None:
                assert cli._parser().parse_args(given).run
