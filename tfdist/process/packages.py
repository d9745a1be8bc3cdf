"""The versions of installed packages, read without importing these.

installed("horovod")    # {"python": "3.11", "tfdist": "0.2.0", "tensorflow": "2.15.1", …}
"""

from __future__ import annotations

import importlib.metadata
import sys
from contextlib import suppress

from tfdist.process.version import __version__


def installed(*packages: str) -> dict[str, str]:
    """The versions of Python, tfdist, TensorFlow, Keras and other packages, as far as installed.

    Args:
      packages: the other packages.
    """
    found = {"python": ".".join(map(str, sys.version_info[:2])), "tfdist": __version__}
    # The same package has several names; the last one that is installed counts.
    for distribution in ("tensorflow-cpu", "tensorflow", "keras", *packages):
        with suppress(importlib.metadata.PackageNotFoundError):
            name = distribution.removesuffix("-cpu")
            found[name] = importlib.metadata.version(distribution)
    return found


def description() -> str:
    """The versions of all packages that matter to a training, as a line for people."""
    return ", ".join(map(" ".join, installed("tf_keras", "horovod").items()))
