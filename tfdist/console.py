"""What tfdist itself tells the user, apart from what the script prints."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line on stderr, at once, that tells whose it is."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)
