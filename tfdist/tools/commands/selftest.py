"""`tfdist test`: trains for some seconds to prove that this installation can."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec

from tfdist.config.options import Options, option
from tfdist.config.strategies import StrategySpec, table
from tfdist.errors import EXIT_FAILED, EXIT_OK
from tfdist.process import packages
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    read_options,
    strategy_flag,
)

# The last lines of the output of a job that failed.
_TAIL = 30
# Tolerances of weights that are about 1: float32 rounds each step, and asynchronous updates are
# not in the order of NumPy's.
_EXACT, _ASYNCHRONOUS = 1e-5, 0.5


@dataclass(frozen=True)
class SelfTestOptions(Options):
    """The flags of the command."""

    workers: int = option(2, "number of workers", least=1)
    ps: int = option(1, "number of parameter servers", least=1)
    deadline: float = option(120.0, "seconds after which a training is ended", above=0.0)


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    test = commands.add_parser(
        "test",
        help="train for some seconds to prove that this installation can",
        description="Trains a linear model on this machine, with the strategy or with each one "
        "that this installation has. Checks that all tasks end with the same weights, and that "
        "these are those that NumPy computes in one process, or near them with asynchronous "
        "updates. Exit code 0: everything agrees, 1: something does not.",
    )
    strategy_flag(test, f"one of {', '.join(table.rows())} (default: all)", default=None)
    add_options(test, SelfTestOptions.defined())
    test.set_defaults(run=_test)
    test.examples = (
        "tfdist test",
        "tfdist test --strategy=parameter_server --ps=2 --workers=3",
    )


def _test(arguments: argparse.Namespace) -> int:
    from tfdist.tools.selftest.trial import TrialError, try_flags

    options = SelfTestOptions(**read_options(arguments, SelfTestOptions.defined()))
    print(packages.description(), flush=True)
    names = [arguments.strategy] if arguments.strategy else list(table.rows())
    code = EXIT_OK
    for row in map(table.row, names):
        missing = [name for name in row.packages if find_spec(name) is None]
        if missing and not arguments.strategy:
            print(f"      {row.name}: not installed", flush=True)
            continue
        for flags, tolerance in _ways(row, options):
            way, begun = " ".join(flags), time.monotonic()
            try:
                found = try_flags(flags, tolerance=tolerance, deadline=options.deadline)
                print(f"ok    {way}: {found}, {time.monotonic() - begun:.1f} s", flush=True)
            except TrialError as error:
                code = EXIT_FAILED
                print(f"FAILED {way}: {error}", flush=True)
                print("\n".join(error.output.splitlines()[-_TAIL:]), file=sys.stderr, flush=True)
    return code


def _ways(row: StrategySpec, options: SelfTestOptions) -> list[tuple[list[str], float]]:
    """The flags with which a strategy is tried, each with the tolerance of its weights."""
    flags = [f"--strategy={row.name}"]
    if not row.spans_tasks:
        return [(flags if row.single_replica else [*flags, "--num_cpu_devices=2"], _EXACT)]
    flags.append(f"--workers={options.workers}")
    if not row.uses_ps:
        return [(flags, _EXACT)]
    flags.append(f"--ps={options.ps}")
    return [(flags, _ASYNCHRONOUS), ([*flags, "--sync"], _EXACT)]
