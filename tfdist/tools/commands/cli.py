"""The `tfdist` command.

    tfdist run --ps=1 --workers=2 train.py --epochs=3     # runs a job on this machine
    srun tfdist exec train.py                             # one task of a job of Slurm
    tfdist render hosts --worker_hosts=a:2222,b:2222      # prints each task's TF_CONFIG or flags
    tfdist check --job_name=worker --task_index=0 --worker_hosts=a:2222,b:2222   # tests the network
    tfdist status /shared/run1                            # what a running job does
    tfdist stacks /shared/run1                            # where its tasks are in Python
    tfdist plot /shared/run1                              # draws its learning curves
    tfdist report /shared/run1                            # writes a page about it
    tfdist data cifar10 --data_dir=/tmp/data              # writes the examples' dataset
    tfdist horovod build                                  # compiles and installs Horovod
    tfdist env                                            # what a bug report needs
    tfdist test                                           # a short training with each strategy

A usage error prints one line on stderr and exits with code 2.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from tfdist.errors import EXIT_USAGE, exit_on_usage_error, log
from tfdist.process.resources import limited_open_files
from tfdist.process.version import __version__
from tfdist.tools.commands import (
    check,
    data,
    env,
    execute,
    horovod_build,
    plot,
    render,
    report,
    run,
    selftest,
    status,
)

_COMMANDS = (
    run,
    execute,
    render,
    check,
    status,
    plot,
    report,
    data,
    horovod_build,
    env,
    selftest,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
      argv: the arguments after the command's name; default: this process's arguments.

    Raises:
      SystemExit: the arguments are invalid (code 2), or contain `--help` or `--version`.
    """
    _open_standard_streams()
    try:
        with exit_on_usage_error(), limited_open_files():
            if "_ARGCOMPLETE" in os.environ:
                import argcomplete

                argcomplete.autocomplete(_parser())
            given = sys.argv[1:] if argv is None else list(argv)
            if not given:
                _parser().print_help(sys.stderr)
                return EXIT_USAGE
            arguments = _parser().parse_args(given)
            code: int = arguments.run(arguments)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        # Python flushes stdout again at exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _open_standard_streams() -> None:
    """Opens closed standard streams, because other files would get their descriptors."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            setattr(sys, name, os.fdopen(descriptor, mode))


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, as the rest of tfdist does, and suggests a correction.

    Attributes:
      examples: commands, which the help shows at its end.
    """

    examples: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def format_help(self) -> str:
        lines = ["", "examples:", *(f"  {example}" for example in self.examples), ""]
        return super().format_help() + ("\n".join(lines) if self.examples else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            # argparse would report them in the main parser, which knows no flags of commands.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        log(f"error: {message}{_choice(message)} (see {self.prog} --help)")
        sys.exit(EXIT_USAGE)

    def _meant(self, argument: str) -> str:
        name = argument.partition("=")[0].replace("-", "_").lstrip("_")
        flags = [each.dest for each in self._actions if f"--{each.dest}" in each.option_strings]
        if (count := name.removeprefix("num_")) in flags:
            return f"; did you mean --{count}?"  # Rather than `--min_workers`.
        # `--worker` means `--workers` rather than `--worker_hosts`.
        close = sorted(get_close_matches(name, flags), key=lambda flag: abs(len(flag) - len(name)))
        if close:
            return f"; did you mean --{close[0]}?"
        return "; flags of the script come after it" if "SCRIPT" in self.format_usage() else ""


def _choice(message: str) -> str:
    """A suggestion for argparse's message about an unknown command; empty if there is none."""
    match = re.match(r"argument \S+: invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if not match:
        return ""
    name, names = match[1], re.findall(r"[\w-]+", match[2])
    if name.endswith(".py"):
        return f"; did you mean tfdist run {name}?"
    close = get_close_matches(name, names)
    return f"; did you mean {close[0]}?" if close else ""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tfdist",
        description="Distributed TensorFlow training: one script, every way of distributing it.",
    )
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    parser.examples = (
        "tfdist test",
        "tfdist run --workers=2 train.py --epochs=3",
        "tfdist run --strategy=parameter_server --ps=1 --workers=2 train.py",
        "tfdist status /shared/run1",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
