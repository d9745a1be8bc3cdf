"""`tfdist data`: writes a dataset as TFRecord files, and verifies TFRecord files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tfdist.data import records
from tfdist.errors import EXIT_FAILED, EXIT_OK, UsageError
from tfdist.process.paths import local_path
from tfdist.tools.commands.arguments import Commands, flag


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    data = commands.add_parser(
        "data",
        help="write or verify TFRecord files",
        description="Writes a dataset as TFRecord files, or verifies TFRecord files.",
    )
    actions = data.add_subparsers(required=True, metavar="ACTION")
    cifar10 = actions.add_parser(
        "cifar10",
        help="write CIFAR-10, or data in its format, as TFRecord files",
        description="Writes CIFAR-10, or data in its format, as TFRecord files.",
    )
    flag(cifar10, "data_dir", required=True, metavar="DIR", help="the directory to write to")
    flag(
        cifar10,
        "source",
        default="digits",
        metavar="SOURCE",
        help="digits (default: scikit-learn's, no download), or download for CIFAR-10",
    )
    cifar10.set_defaults(run=_cifar10)
    cifar10.examples = ("tfdist data cifar10 --data_dir=/tmp/data",)
    verify = actions.add_parser(
        "verify",
        help="find damaged TFRecord files",
        description="Reads TFRecord files to their end, also compressed ones. For each damaged or "
        "incomplete file, prints a line with the offset of the first fault. Of a directory, reads "
        f"the files of its {records.MANIFEST_NAME}, or else all files that are named *.tfrecord*. "
        "Exit code 0: all files are intact, 1: some are damaged.",
    )
    verify.add_argument("files", nargs="+", metavar="FILE", help="a TFRecord file, or a directory")
    verify.set_defaults(run=_verify)
    verify.examples = ("tfdist data verify /shared/data",)


def _cifar10(arguments: argparse.Namespace) -> int:
    from tfdist.data import cifar10

    print(cifar10.write(arguments.data_dir, arguments.source))
    return EXIT_OK


def _verify(arguments: argparse.Namespace) -> int:
    files = [file for path in arguments.files for file in _files(local_path("FILE", path))]
    for file in files:
        if not os.path.isfile(file):
            raise UsageError(
                "FILE",
                received=file,
                accepted="the path of a TFRecord file, or of a directory with some",
                remedy="There is no such file: correct the path, or copy the file again.",
            )
    from tfdist.data.verify import verify

    damaged = 0
    for damage in verify(files):
        damaged += 1
        print(damage, flush=True)
    print(f"{len(files) - damaged} of {len(files)} files are intact")
    return EXIT_FAILED if damaged else EXIT_OK


def _files(path: Path) -> list[str]:
    """The files in a directory, or the path itself."""
    if not path.is_dir():
        return [str(path)]
    manifest = records.read_manifest(path)
    names = (
        manifest.files if manifest else sorted(each.name for each in path.glob("[!.]*.tfrecord*"))
    )
    return [str(path / name) for name in names] or [str(path)]
