"""`tfdist test`: trains for some seconds to prove that this installation can."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tfdist.config.options import Options, option
from tfdist.config.strategies import StrategySpec, table
from tfdist.errors import EXIT_FAILED, EXIT_OK, log
from tfdist.process import packages
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    read_options,
    strategy_flag,
)

if TYPE_CHECKING:
    from tfdist.tools.selftest.verdict import Verdict, Way

_TAIL = 30


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
        "these are those that NumPy computes in one process. (Asynchronous updates are checked for "
        "the loss alone.) Exit code 0: everything agrees, 1: something does not.",
    )
    strategy_flag(test, f"one of {', '.join(table.rows())} (default: all)", default=None)
    add_options(test, SelfTestOptions.defined())
    test.set_defaults(run=_test)
    test.examples = (
        "tfdist test",
        "tfdist test --strategy=parameter_server --ps=2 --workers=3",
    )


def _test(arguments: argparse.Namespace) -> int:
    from tfdist.tools.selftest.verdict import try_way

    options = SelfTestOptions(**read_options(arguments, SelfTestOptions.defined()))
    print(packages.description(), flush=True)
    names = [arguments.strategy] if arguments.strategy else list(table.rows())
    failed = 0
    for row in map(table.row, names):
        missing = [name for name in row.packages if find_spec(name) is None]
        if missing and not arguments.strategy:
            print(f"      {row.name}: not installed", flush=True)
            continue
        for way in _ways(row, options.workers, options.ps):
            verdict = try_way(way, deadline=options.deadline)
            failed += verdict.problem is not None
            _show(way, verdict)
    return EXIT_FAILED if failed else EXIT_OK


def _ways(row: StrategySpec, workers: int, ps: int) -> list[Way]:
    from tfdist.tools.selftest.verdict import Way

    if not row.spans_tasks:
        devices = () if row.single_replica else ("--num_cpu_devices=2",)
        return [Way(row.name, 0, options=devices)]
    if not row.uses_ps:
        return [Way(row.name, workers)]
    return [
        Way(row.name, workers, ps, is_exact=False),
        Way(row.name, workers, ps, options=("--sync",)),
    ]


def _show(way: Way, verdict: Verdict) -> None:
    if verdict.problem is None:
        tasks = f"{verdict.tasks} tasks agree, " if verdict.tasks > 1 else ""
        exact = f"{verdict.error:.0e} from NumPy, " if way.is_exact else "the loss has fallen, "
        print(f"ok    {way}: {tasks}{exact}{verdict.seconds:.1f} s", flush=True)
        return
    print(f"FAILED {way}: {verdict.problem}", flush=True)
    lines = verdict.output.splitlines()
    if len(lines) > _TAIL:
        log(f"the last {_TAIL} of {len(lines)} lines of the job:")
    print("\n".join(lines[-_TAIL:]), file=sys.stderr, flush=True)
