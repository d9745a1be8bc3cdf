"""`tfdist env`: prints what a bug report needs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from tfdist.compat import imports
from tfdist.errors import EXIT_OK
from tfdist.process import machine
from tfdist.process.version import __version__
from tfdist.tools.commands.arguments import Commands, flag


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    env = commands.add_parser(
        "env",
        help="print the versions and the machine, for a bug report",
        description="Prints the versions of tfdist, Python, TensorFlow, Keras and Horovod, whether "
        "these can be imported and what they were built with, and the processor, memory, GPUs and "
        "limits of this machine. Environment variables are printed if their names begin as those "
        "of tfdist, TensorFlow, Keras, Horovod, CUDA, NCCL or OpenMP, and if they hold no secret.",
    )
    flag(env, "json", action="store_true", help="print it as a JSON object")
    env.set_defaults(run=_env)
    env.examples = (
        "tfdist env",
        "tfdist env --json > env.json",
    )


def _env(arguments: argparse.Namespace) -> int:
    python = f"{platform.python_version()}, {sys.executable}"
    packages = {"tfdist": __version__, "Python": python}
    sections = {"versions": packages, **imports.try_all(), **machine.facts(os.environ)}
    if arguments.json:
        print(json.dumps(sections, indent=2))
        return EXIT_OK
    width = max(len(name) for facts in sections.values() for name in facts)
    for section, facts in sections.items():
        print(section)
        for name, text in facts.items():
            print(f"  {name:{width}}  {text}")
    return EXIT_OK
