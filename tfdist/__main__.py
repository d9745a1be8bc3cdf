"""Runs the `tfdist` command as `python -m tfdist`, if the command itself is not on PATH."""

import sys

from tfdist.tools.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
