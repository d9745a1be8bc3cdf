"""`tfdist completion`: prints what makes a shell complete the command, and completes it."""

from __future__ import annotations

import argparse

from tfdist.errors import EXIT_OK
from tfdist.tools.commands.arguments import Commands

_HOW = {
    "bash": 'eval "$(tfdist completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(tfdist completion zsh)"     # in ~/.zshrc, after compinit',
    "fish": "tfdist completion fish | source     # in ~/.config/fish/config.fish",
}


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    completion = commands.add_parser(
        "completion",
        help="print the completion of tfdist for a shell",
        description="Prints the code that completes commands, flags, strategies and files when you "
        "press Tab.",
    )
    completion.add_argument("shell", choices=_HOW, help="the shell")
    completion.set_defaults(run=_print)
    completion.examples = tuple(_HOW.values())


def _print(arguments: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["tfdist"], shell=arguments.shell))
    return EXIT_OK


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the code of `tfdist completion`, and ends this process.

    Args:
      parser: the parser of the whole command.
    """
    import argcomplete

    argcomplete.autocomplete(parser, exclude=_WithDashes())


class _WithDashes:
    """Contains the other spelling of each flag with underscores."""

    def __contains__(self, completion: object) -> bool:
        return str(completion).startswith("--") and "-" in str(completion)[2:]
