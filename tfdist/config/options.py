"""Options: frozen dataclasses that define flags, with their defaults, help, bounds and checks.

    @dataclass(frozen=True)
    class InGraphOptions(Options):
        stages: int = option(1, "the number of stages", least=1)

    InGraphOptions(stages=0)        # UsageError: --stages: received 0; accepted: at least 1. …
    InGraphOptions.defined()        # {'stages': Option(…)}, from which flags and pages are made

Each flag of tfdist stands in one such class, and nowhere else.
"""

from __future__ import annotations

import math
import typing
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, TypedDict, Unpack

from tfdist.cluster import Cluster
from tfdist.errors import UsageError, refuse

_OPTION = "option"


@dataclass(frozen=True)
class Option:
    """One flag.

    Attributes:
      name: the flag without dashes; the name of the field.
      type: `bool`, `int`, `float` or `str`.
      default: the value without the flag; None if nothing is set.
      help: what the flag does, as a phrase that follows a colon.
      least: the smallest accepted number.
      most: the largest accepted number.
      above: a number that the value must exceed.
      choices: the accepted texts; any if empty.
      same_in_all_tasks: whether tasks with different values cannot train together.
    """

    name: str
    type: type
    default: Any
    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    same_in_all_tasks: bool = False

    @property
    def full_help(self) -> str:
        """The help with the accepted values and the default."""
        values = f"; {', '.join(self.choices)}" if self.choices else ""
        default = self.default
        if isinstance(default, bool):
            default = "on" if default else ""
        elif isinstance(default, float):
            default = f"{default:g}"
        return self.help + values + ("" if default in (None, "") else f" (default {default})")

    @property
    def accepted(self) -> str:
        """The accepted numbers, in words."""
        bounds = {"above": self.above, "at least": self.least, "at most": self.most}
        words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        return " and ".join(words) or "a finite number"

    def check(self, value: Any) -> None:
        """Checks a value that was given.

        Raises:
          UsageError: it is out of the bounds, or not one of the choices.
        """
        if self.choices and value not in self.choices:
            raise UsageError.choice(f"--{self.name}", value, self.choices)
        if self.type in (int, float) and not (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
        ):
            refuse({self.name: value}, self.accepted, "Correct it, or leave it out.")


class _Details(TypedDict, total=False):
    """The attributes of an `Option` that have defaults."""

    least: float
    most: float
    above: float
    choices: tuple[str, ...]
    same_in_all_tasks: bool


def option(default: Any, help: str, **details: Unpack[_Details]) -> Any:
    """A field of an `Options` class, which is a flag; see `Option` for the arguments."""
    return field(default=default, metadata={_OPTION: {"help": help, **details}})


@dataclass(frozen=True)
class Options:
    """The base class of options; it defines no flag.

    Raises:
      UsageError: a value is out of its bounds, or not one of the choices.
    """

    def __post_init__(self) -> None:
        for name, defined in self.defined().items():
            if (value := getattr(self, name)) is not None:
                defined.check(value)

    @classmethod
    @cache
    def defined(cls) -> dict[str, Option]:
        """The fields that are flags, by name, in the order of their definition."""
        types = typing.get_type_hints(cls)
        return {
            item.name: Option(
                item.name,
                _without_none(types[item.name]),
                None if item.default is MISSING else item.default,
                **item.metadata[_OPTION],
            )
            for item in fields(cls)
            if _OPTION in item.metadata
        }

    def given(self, *names: str) -> dict[str, Any]:
        """The options in `names` that this class has and that differ from the default, by name."""
        values = {name: getattr(self, name) for name in names if name in self.defined()}
        return {n: value for n, value in values.items() if value != self.defined()[n].default}

    @property
    def workers_at_start(self) -> int | None:
        """How many workers must be there when the training begins; None for all."""
        return None

    @property
    def implementation(self) -> str | None:
        """The strategy class that these options select, as `module:name`; None for the class in the
        strategy's row of the table."""
        return None

    def check(self, cluster: Cluster) -> None:
        """Checks the options of a strategy against each other and against the job's tasks.

        Called before the tasks wait for each other, and before TensorFlow is imported.

        Args:
          cluster: the job's tasks; empty for a single process, and under `horovodrun`.

        Raises:
          UsageError: these options cannot be used, or not with these tasks.
        """


def _without_none(kind: Any) -> type:
    return next(each for each in (*typing.get_args(kind), kind) if each is not NoneType)
