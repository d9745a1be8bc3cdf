"""Whether the installed packages that work with TensorFlow or Keras fit each other.

conflicts()    # {"keras 2.15.0": [], "keras-hub 0.32.0": ["it requires keras>=3.15, …"], …}
"""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_WANTED = {"tensorflow", "tensorflow-cpu", "keras", "tf-keras"}
# No extra, and the one by which TensorFlow Probability says which TensorFlow it needs.
_EXTRAS = ("", "tf")


def conflicts() -> dict[str, list[str]]:
    """What does not fit each installed package that requires TensorFlow or Keras, or is named so.

    Returns:
      For each package, such as `keras-hub 0.32.0`, a sentence per requirement of which another
      version is installed, or none of TensorFlow or Keras.
    """
    found = {}
    versions: dict[str, str] = {}
    packages = {}
    for package in importlib.metadata.distributions():
        name = canonicalize_name(package.name)
        # Python imports the first of several with one name.
        if name not in versions:
            versions[name], packages[name] = package.version, package.requires or ()
    for name, requires in sorted(packages.items()):
        needs = [Requirement(text) for text in requires]
        names = {name, *(canonicalize_name(need.name) for need in needs)}
        if names & _WANTED or name.startswith(("keras", "tensorflow", "tf-")):
            reasons = [_conflict(need, versions) for need in needs]
            found[f"{name} {versions[name]}"] = [reason for reason in reasons if reason]
    return found


def _conflict(need: Requirement, versions: dict[str, str]) -> str | None:
    name = canonicalize_name(need.name)
    extras = [e for e in _EXTRAS if not need.marker or need.marker.evaluate({"extra": e})]
    if version := versions.get(name):
        is_wrong = extras and not need.specifier.contains(version, prereleases=True)
    else:
        is_wrong = "" in extras and name in _WANTED
    said = f"it requires {need.name}{need.specifier}, and {version or 'none'} is installed"
    return said if is_wrong else None
