"""Completes the command in a shell, with argcomplete: `docs/commands.md` has what to set up."""

from __future__ import annotations

import argparse


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the code of `register-python-argcomplete tfdist`, and ends this process.

    Args:
      parser: the parser of the whole command.
    """
    import argcomplete

    argcomplete.autocomplete(parser, exclude=_WithDashes())


class _WithDashes:
    """Contains each flag that is spelled with dashes, so that completion leaves it out."""

    def __contains__(self, completion: object) -> bool:
        return str(completion).startswith("--") and "-" in str(completion)[2:]
