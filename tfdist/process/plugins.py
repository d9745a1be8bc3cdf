"""Tables whose rows installed packages and scripts extend.

TABLE = Registry("strategy", "tfdist.strategies", ROWS)
TABLE.register(row)
TABLE.rows()["scaled"]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, Protocol, TypeVar

from tfdist.errors import log


class Named(Protocol):
    """A row of a table."""

    @property
    def name(self) -> str:
        """The name, which no other row has."""


Row = TypeVar("Row", bound=Named)


class Registry(Generic[Row]):
    """Rows by name: those of tfdist, those of installed packages, and those that scripts register.

    Args:
      what: what a row describes, for messages.
      group: the group of entry points by which packages add rows. Each one names a row in a module
        that does not import TensorFlow.
      own: the rows of tfdist.
    """

    def __init__(self, what: str, group: str, own: Iterable[Row]) -> None:
        self._what, self._group = what, group
        self._rows = {row.name: row for row in own}
        self._has_installed = False

    def register(self, row: Row) -> None:
        """Adds a row to the table; call this before `define_flags` and `tfdist.main`.

        Raises:
          ValueError: the table has a row of that name.
        """
        if row.name in self._rows:
            raise ValueError(f"{self._what} {row.name!r} is already in the table.")
        self._rows[row.name] = row

    def rows(self) -> Mapping[str, Row]:
        """All rows by name; those of tfdist come first, in its order."""
        if not self._has_installed:
            self._has_installed = True
            for row in self._installed():
                self.register(row)
        return self._rows

    def _installed(self) -> Iterator[Any]:
        """The rows of installed packages. A broken package must not break the jobs that do not use
        it: it is logged, and left out."""
        for point in entry_points(group=self._group):
            try:
                yield point.load()
            except Exception as error:
                log(
                    f"warning: the {self._what} {point.name} of {point.value} is not available: "
                    f"{type(error).__name__}: {error}"
                )
