"""Places each variable on the ps that stores the fewest bytes, and reports an uneven result.

    placement = Placement(num_ps=2)
    with placement.scope(strategy.scope()):
        model = build()
    placement.bytes_per_ps()                # [4100, 4096]
    placement.advice()                      # None, or a line for the user

TensorFlow places variables in turn, so one ps may get all the large ones. A variable is placed when
it is created, before the later ones are known, so the placement is greedy in the order of creation:
the largest ps stores at most one variable (with its slots) more than the mean. The slots of an
optimizer are created with `colocate_vars_with` their variable and lie on its ps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.process import quantities
from tfdist.strategies.parameter_server.variables.partitioner import MIN_BYTES
from tfdist.strategies.sizes import bytes_of

#: The largest ps may store this many times the mean; above it, there is a line about it.
MAX_SKEW = 1.2
# A smaller excess over the mean is not worth a line.
_MIN_EXCESS_BYTES = MIN_BYTES


@dataclass
class Placed:
    """A variable that was placed, and the slots that were colocated with it.

    Attributes:
      size: its bytes.
      rows: its size along the first axis; 1 for a scalar.
      slots: its existing slots, in the order of their creation.
    """

    size: int
    rows: int
    slots: list[weakref.ref[Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The bytes of the variable and its slots."""
        slots = (slot() for slot in self.slots)
        return self.size + sum(bytes_of(slot) for slot in slots if slot is not None)


class Placement:
    """Tracks the existing variables and the ps of each.

    Args:
      num_ps: the number of parameter servers.
    """

    def __init__(self, num_ps: int) -> None:
        self._bytes = [0] * num_ps
        # By `id` of an existing variable, in the order of creation.
        self._placed: dict[int, Placed] = {}

    @contextmanager
    def scope(self, strategy_scope: AbstractContextManager[Any]) -> Iterator[Any]:
        """The scope of a strategy, in which variables are placed and recorded."""
        # TensorFlow calls the creators from the inside to the outside. The strategy gives a
        # variable the next ps in turn, `_place` another one, and `_record` sees what the strategy
        # returns, which wraps the variables that `_place` sees.
        with (
            tf.variable_creator_scope(self._place),
            strategy_scope as strategy,
            tf.variable_creator_scope(self._record),
        ):
            yield strategy

    def count(self, variable: Any, ps: int) -> None:
        """Counts the bytes of a variable that was created on a ps, as long as it exists."""
        size = bytes_of(variable)
        self._bytes[ps] += size
        weakref.finalize(variable, self._uncount, size, ps).atexit = False

    def add(self, variable: Any) -> None:
        """Records a variable that was created on a ps."""
        shape = variable.shape
        rows = int(shape[0] or 1) if shape.rank else 1
        self._placed[id(variable)] = Placed(bytes_of(variable), rows)
        weakref.finalize(variable, self._placed.pop, id(variable), None).atexit = False

    def add_slot(self, variable: Any, of: Any) -> None:
        """Records a variable that was colocated with another one; ignores unknown ones."""
        placed = self._placed.get(id(of))
        if placed is not None:
            placed.slots.append(weakref.ref(variable))

    def slots_of(self, variable: Any) -> list[Any]:
        """The variables that were colocated with a variable, in the order of their creation."""
        placed = self._placed.get(id(variable))
        slots = [slot() for slot in placed.slots] if placed is not None else []
        return [slot for slot in slots if slot is not None]

    def bytes_per_ps(self) -> list[int]:
        """By ps, the bytes of its variables, including slots."""
        return list(self._bytes)

    def least_loaded(self) -> int:
        """The ps with the fewest bytes; the first one if there are several."""
        # A variable may be freed meanwhile, which changes its number.
        return min(range(len(self._bytes)), key=self._bytes.__getitem__)

    def advice(self) -> str | None:
        """A line with the bytes of each ps and the remedy; None if they are even enough."""
        loads = self.bytes_per_ps()
        if not _is_uneven(loads):
            return None
        found = ", ".join(f"ps:{ps} {quantities.size(load)}" for ps, load in enumerate(loads))
        skew = max(loads) * len(loads) / sum(loads)
        size = self._even_partition_bytes()
        remedy = (
            f"Balance them with --partition_bytes={size}."
            if size is not None
            else "Use fewer parameter servers: no partition of the variables balances them."
        )
        return f"the largest ps stores {skew:.2f} times the mean ({found}). {remedy}"

    def _place(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("colocate_with") is not None:
            variable = next_creator(**kwargs)
        else:
            with tf.device(f"/job:ps/task:{self.least_loaded()}/device:CPU:0"):
                variable = next_creator(**kwargs)
        self.count(variable, _ps_of(variable))
        return variable

    def _record(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        if kwargs.get("colocate_with") is not None:
            self.add_slot(variable, kwargs["colocate_with"])
            return variable
        # A `ShardedVariable` has parts.
        for part in getattr(variable, "variables", [variable]):
            self.add(part)
        return variable

    def _uncount(self, size: int, ps: int) -> None:
        self._bytes[ps] -= size

    def _even_partition_bytes(self) -> int | None:
        """The largest part size, a power of two, that balances the ps; None if there is none."""
        variables, num_ps = list(self._placed.values()), len(self._bytes)
        size = 1 << (max(placed.size for placed in variables) // num_ps).bit_length()
        while size >= _MIN_EXCESS_BYTES:
            loads, totals = [0] * num_ps, [0] * num_ps
            for placed in variables:
                parts = _parts_for(placed, size)
                for _ in range(parts):
                    # The slots are created later, when all variables have their places.
                    ps = loads.index(min(loads))
                    loads[ps] += placed.size // parts
                    totals[ps] += placed.total // parts
            if not _is_uneven(totals):
                return size
            size //= 2
        return None


def _parts_for(placed: Placed, size: int) -> int:
    """The number of parts of at most `size` bytes, or of one row."""
    if placed.size <= size:
        return 1
    rows_per_part = max(size * placed.rows // placed.size, 1)
    return -(-placed.rows // rows_per_part)


def _ps_of(variable: Any) -> int:
    return int(tf.DeviceSpec.from_string(variable.device).task)


def _is_uneven(loads: Sequence[int]) -> bool:
    mean = sum(loads) / len(loads)
    return max(loads) > MAX_SKEW * mean and max(loads) - mean >= _MIN_EXCESS_BYTES
