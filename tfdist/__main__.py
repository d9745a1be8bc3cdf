"""`python -m tfdist`: the `tfdist` command, for an interpreter whose scripts are not on PATH."""

import sys

from tfdist.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
