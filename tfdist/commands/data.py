"""`tfdist data`: a data set as TFRecord files."""

from __future__ import annotations

import argparse

from tfdist.commands.arguments import Commands, flag
from tfdist.errors import EXIT_OK, UsageError


def add_to(commands: Commands) -> None:
    """Adds the command to the parser's."""
    data = commands.add_parser(
        "data",
        help="write a data set as TFRecord files",
        description="Writes a data set as TFRecord files.",
        allow_abbrev=False,
    )
    data.add_argument("dataset", choices=("cifar10",), help="the data set")
    flag(
        data,
        "data_dir",
        required=True,
        metavar="DIR",
        help="the directory to write to",
    )
    flag(
        data,
        "source",
        default="digits",
        metavar="SOURCE",
        help="digits (default; scikit-learn's, needs no network), download, or the path of a copy",
    )
    data.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> int:
    from tfdist.data import cifar10

    try:
        print(cifar10.write(arguments.data_dir, arguments.source))
    except ImportError as error:
        raise UsageError(
            "--source",
            received=arguments.source,
            accepted="a source whose package is installed",
            remedy=str(error),
        ) from error
    return EXIT_OK
