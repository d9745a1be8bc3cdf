"""Numbers with units, as users write them: `25M`, `10Gbit`, `16GB`; and how they are printed.

The prefixes are decimal: a kB is 1,000 bytes. `Ki`, `Mi` and `Gi` are the binary ones.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from tfdist.errors import UsageError

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# A longer exponent is beyond all limits, and beyond what Decimal can compute.
_FRACTION = r"(?:\.\d*)?(?:[eE]\d{1,3})?"
_NUMBER = rf"(\d+{_FRACTION})"
_COUNT = re.compile(rf"((?:\d{{1,3}}(?:,\d{{3}})+|\d+){_FRACTION})\s*([kKMGBT]?)")
_SIZE = re.compile(rf"{_NUMBER}\s*([kKMGT]i?|)B?")
_BANDWIDTH = re.compile(rf"{_NUMBER}\s*([kKMGT]?)(bit|B)(?:/s)?")


def count(field: str, text: str, most: int = 10**15) -> int:
    """An integer: `25M`, `1.5B`, `350k`, `1000`, `1,000`.

    Args:
      field: the name of the flag, for the error.
      text: the value of the flag.
      most: the greatest number that is accepted.

    Raises:
      UsageError: the text is not a number from 1 to `most`.
    """
    match = _COUNT.fullmatch(text)
    # As a float, 2.3M would not be an integer.
    value = Decimal(match[1].replace(",", "")) * int(_PREFIXES[match[2]]) if match else Decimal(0)
    if not 1 <= value <= most or value != int(value):
        raise _error(field, text, f"an integer from 1 to {most:,}, also as 350k, 25M or 1.5B")
    return int(value)


def size(field: str, text: str) -> float:
    """Bytes: `16GB`, `512MB`, `8GiB`; without a prefix, the number of bytes.

    Raises:
      UsageError: the text is not a size above 0.
    """
    match = _SIZE.fullmatch(text)
    value = _value(match)
    if not 0 < value < math.inf:
        raise _error(field, text, "bytes above 0, such as 512MB, 16GB or 8GiB")
    return value


def bandwidth(field: str, text: str) -> float:
    """Bytes per second: `10Gbit`, `1Gbit/s`, `100MB/s`.

    Raises:
      UsageError: the text is not a bandwidth above 0, or has no unit.
    """
    match = _BANDWIDTH.fullmatch(text)
    value = _value(match)
    if match is None or not 0 < value < math.inf:
        raise _error(field, text, "bits or bytes per second, such as 10Gbit, 1Gbit/s or 100MB/s")
    return value / 8 if match[3] == "bit" else value


def _value(match: re.Match[str] | None) -> float:
    if match is None:
        return math.nan
    return float(match[1]) * {**_PREFIXES, **_BINARY}[match[2]]


def _error(field: str, text: str, accepted: str) -> UsageError:
    return UsageError(field, received=text, accepted=accepted, remedy="Correct the number.")


def size_text(value: float) -> str:
    """Bytes with three digits and a decimal prefix: `1.5 GB`."""
    return _with_prefix(value, "B")


def bandwidth_text(value: float) -> str:
    """Bytes per second, printed as bits per second: `10 Gbit/s`."""
    return _with_prefix(8 * value, "bit/s")


def seconds_text(value: float) -> str:
    """Seconds with three digits: `1.2 ms`."""
    if value >= 999.5:
        return f"{value:,.0f} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        # 999.6 us is printed as 1 ms.
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{1e9 * value:.3g} ns" if value else "0 s"


def _with_prefix(value: float, unit: str) -> str:
    for prefix in ("T", "G", "M", "k"):
        # 999.6 MB is printed as 1 GB.
        if value >= 0.9995 * _PREFIXES[prefix]:
            return f"{value / _PREFIXES[prefix]:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
