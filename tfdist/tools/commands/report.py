"""`tfdist report`: writes a page about a training."""

from __future__ import annotations

import argparse

from tfdist.errors import EXIT_OK, log
from tfdist.tools.commands.arguments import Commands, flag

_PAGE = "report.html"


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    report = commands.add_parser(
        "report",
        help="write a page about a training",
        description="Writes one HTML page, which needs no other file: the result, the curves, the "
        "job and its tasks, its starts, the last metrics, the checkpoints, and the hang report if "
        "there is one. The training may still run. The curves need matplotlib: pip install "
        "'tfdist[plot]'.",
    )
    report.add_argument("output_dir", metavar="OUTPUT_DIR", help="an output directory")
    flag(report, "output", metavar="FILE", default=_PAGE, help=f"the page (default {_PAGE})")
    report.set_defaults(run=_report)
    report.examples = (
        "tfdist report /shared/run1",
        "tfdist report /shared/run1 --output=run1.html",
    )


def _report(arguments: argparse.Namespace) -> int:
    from tfdist.tools.watch import curves
    from tfdist.tools.watch.html_report import page_of
    from tfdist.tools.watch.training_log import Run

    page = page_of(Run.of(arguments.output_dir))
    curves.write(arguments.output, page.encode())
    log(f"wrote the report: {arguments.output}")
    return EXIT_OK
