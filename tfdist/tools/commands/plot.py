"""`tfdist plot`: draws the curves of trainings."""

from __future__ import annotations

import argparse

from tfdist.errors import EXIT_FAILED, EXIT_OK
from tfdist.tools.commands.arguments import Commands, flag

_PICTURE = "curves.png"


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    plot = commands.add_parser(
        "plot",
        help="draw the learning curves of trainings",
        description="Draws each metric of the training, the validation and the evaluator, and the "
        "examples per second, of one run or of several over each other, with marks where a run was "
        "started again. A run may still be training. Needs matplotlib: pip install 'tfdist[plot]'.",
    )
    plot.add_argument("output_dirs", metavar="OUTPUT_DIR", nargs="+", help="an output directory")
    flag(
        plot,
        "output",
        metavar="FILE",
        default=_PICTURE,
        help=f"the picture, which ends with .png, .svg or .pdf (default {_PICTURE})",
    )
    flag(
        plot,
        "x",
        choices=("epoch", "step", "time"),
        help="what the curves are drawn over (default epoch; step for Estimators)",
    )
    flag(plot, "metrics", metavar="NAME,...", help="such as loss,accuracy (default: all)")
    plot.set_defaults(run=_plot)
    plot.examples = (
        "tfdist plot /shared/run1",
        "tfdist plot /shared/run1 /shared/run2 --x=time --metrics=loss --output=loss.svg",
    )


def _plot(arguments: argparse.Namespace) -> int:
    from tfdist.tools.watch import curves

    metrics = arguments.metrics.split(",") if arguments.metrics else None
    written = curves.plot(
        arguments.output_dirs, arguments.output, axis=arguments.x, metrics=metrics
    )
    return EXIT_OK if written else EXIT_FAILED
