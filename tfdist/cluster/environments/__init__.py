"""The engines that start the tasks of a job, in the order in which tfdist looks for them.

    for environment in table():
        environment(os.environ, flags).config()

A module of this package defines one environment. To support another engine, add a module.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from tfdist.cluster.environments.base import Environment


@functools.cache
def table() -> tuple[type[Environment], ...]:
    """The environments, in their order."""
    found: list[type[Environment]] = []
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        found += [
            member
            for member in members
            if isinstance(member, type)
            and issubclass(member, Environment)
            and member.__module__ == f"{__name__}.{module.name}"
            and hasattr(member, "order")
        ]
    return tuple(sorted(found, key=lambda environment: environment.order))


def marks() -> tuple[str, ...]:
    """The variables that show an engine to a task."""
    return tuple(dict.fromkeys(name for environment in table() for name in environment.marks))
