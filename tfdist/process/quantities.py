"""Numbers as a person reads them."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `1 min 12 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for name, size, part, least in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // least} {part}"
    return f"{whole} s"


def size(number: float) -> str:
    """Bytes as `12 kB`, `0.4 MB`, `612 MB` or `1.4 GB`."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} GB"
    if number < 1e5:
        return f"{number / 1e3:.{0 if number >= 1e4 else 1}f} kB"
    return f"{number / 1e6:.{0 if number >= 1e7 else 1}f} MB"


def rate(number: float) -> str:
    """Formats a rate: `0.42`, `98`, `12,345`; omits digits that would change all the time."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def value(number: float) -> str:
    """A loss with four digits; empty if it is not known (-inf)."""
    return "" if number == -math.inf else f"{number:.4g}"
