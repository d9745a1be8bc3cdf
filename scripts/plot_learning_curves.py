"""Plots the loss and the accuracy by epoch of a training.

python scripts/plot_learning_curves.py OUTPUT_DIR CURVES.png
"""

from __future__ import annotations

import argparse
import sys

from tfdist.errors import EXIT_FAILED, EXIT_OK, exit_on_usage_error
from tfdist.training import curves


@exit_on_usage_error()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output_dir")
    parser.add_argument("picture")
    arguments = parser.parse_args()
    return EXIT_OK if curves.plot(arguments.output_dir, arguments.picture) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
