"""The `tfdist` command: its arguments and what it prints.

    tfdist run --ps=1 --workers=2 train.py --epochs=3     # a job on this machine
    tfdist render --worker_hosts=a:2222,b:2222            # what to start on which machine
    tfdist check --job_name=worker --task_index=0 --worker_hosts=a:2222,b:2222   # do they meet?
    tfdist data cifar10 --data_dir=/tmp/data              # the data set of the examples

A mistake is answered in one line on stderr, with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from tfdist.commands import check, data, render, run
from tfdist.errors import EXIT_USAGE, exit_on_usage_error, log
from tfdist.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
      argv: the arguments after the command's name; by default those of this process.

    Raises:
      SystemExit: the arguments cannot be used (code 2), or `--help` or `--version` was given.
    """
    try:
        with exit_on_usage_error():
            arguments = _parser().parse_args(argv)
            code: int = arguments.run(arguments)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class _Parser(argparse.ArgumentParser):
    """Answers a mistake in one line, as the rest of tfdist does."""

    def error(self, message: str) -> NoReturn:
        log(f"error: {message} (see {self.prog} --help)")
        sys.exit(EXIT_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tfdist",
        description="Distributed TensorFlow training: one script, every way of distributing it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (run, render, check, data):
        command.add_to(commands)
    return parser
