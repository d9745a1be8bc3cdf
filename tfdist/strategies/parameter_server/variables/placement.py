"""Places each variable on the ps that stores the fewest bytes, and reports an uneven result.

    placement = place_by_bytes(strategy, num_ps=2)
    with strategy.scope():
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)

from tfdist.strategies.parameter_server.variables import partitioner as partitions
from tfdist.strategies.sizes import bytes_of, readable

#: The largest ps may store this many times the mean; above it, there is a line about it.
MAX_SKEW = 1.2
# A smaller excess over the mean is not worth a line.
_MIN_EXCESS_BYTES = partitions.MIN_BYTES


@dataclass
class Placed:
    """A variable that was placed, and the slots that were colocated with it.

    Attributes:
      ps: the index of its ps.
      size: its bytes.
      rows: its size along the first axis; 1 for a scalar.
      slots: its existing slots, in the order of their creation.
    """

    ps: int
    size: int
    rows: int
    slots: list[weakref.ref[Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The bytes of the variable and its slots."""
        slots = (slot() for slot in self.slots)
        return self.size + sum(bytes_of(slot) for slot in slots if slot is not None)


class Placement:
    """The existing variables and where they lie.

    Args:
      num_ps: the number of parameter servers.
    """

    def __init__(self, num_ps: int) -> None:
        self._bytes = [0] * num_ps
        # By `id` of an existing variable, in the order of creation.
        self._placed: dict[int, Placed] = {}

    def add(self, variable: Any, ps: int) -> None:
        """Records a variable that was created on a ps."""
        shape = variable.shape
        rows = int(shape[0] or 1) if shape.rank else 1
        self._placed[id(variable)] = Placed(ps, bytes_of(variable), rows)
        weakref.finalize(variable, self._placed.pop, id(variable), None).atexit = False
        self._count(variable, ps)

    def add_slot(self, variable: Any, of: Any) -> None:
        """Records a variable that was colocated with another one; ignores unknown ones."""
        placed = self._placed.get(id(of))
        if placed is not None:
            placed.slots.append(weakref.ref(variable))
            self._count(variable, placed.ps)

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
        return self._bytes.index(min(self._bytes))

    def advice(self) -> str | None:
        """A line with the bytes of each ps and the remedy; None if they are even enough."""
        loads = self.bytes_per_ps()
        if not _is_uneven(loads):
            return None
        found = ", ".join(f"ps:{ps} {readable(load)}" for ps, load in enumerate(loads))
        skew = max(loads) * len(loads) / sum(loads)
        size = self._even_partition_bytes()
        remedy = (
            f"Balance them with --partition_bytes={size}."
            if size is not None
            else "Use fewer parameter servers: no partition of the variables balances them."
        )
        return f"the largest ps stores {skew:.2f} times the mean ({found}). {remedy}"

    def _count(self, variable: Any, ps: int) -> None:
        size = bytes_of(variable)
        self._bytes[ps] += size
        weakref.finalize(variable, self._uncount, size, ps).atexit = False

    def _uncount(self, size: int, ps: int) -> None:
        self._bytes[ps] -= size

    def _even_partition_bytes(self) -> int | None:
        """The largest of some values of `--partition_bytes` with which the ps would be even."""
        variables, num_ps = list(self._placed.values()), len(self._bytes)
        size = 1 << (max(placed.size for placed in variables) // num_ps).bit_length()
        while size >= _MIN_EXCESS_BYTES:
            loads, totals = [0] * num_ps, [0] * num_ps
            for placed in variables:
                parts = partitions.parts_for(placed.size, placed.rows, size)
                for _ in range(parts):
                    # The slots are created later, when all variables have their places.
                    ps = loads.index(min(loads))
                    loads[ps] += placed.size // parts
                    totals[ps] += placed.total // parts
            if not _is_uneven(totals):
                return size
            size //= 2
        return None


class PlacingExtended(ParameterServerStrategyV2Extended):
    """TensorFlow's implementation of a strategy, which asks a `Placement` for each variable's ps.

    Attributes:
      placement: chooses the ps and records what is created.
    """

    placement: Placement

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        if "colocate_with" in kwargs:
            self.placement.add_slot(variable, kwargs["colocate_with"])
        return variable

    def _create_variable_round_robin(self, next_creator: Any, **kwargs: Any) -> Any:
        # TensorFlow takes the remainder of this count as the index of the ps.
        self._variable_count = ps = self.placement.least_loaded()
        variable = super()._create_variable_round_robin(next_creator, **kwargs)
        self.placement.add(variable, ps)
        return variable


def place_by_bytes(strategy: tf.distribute.ParameterServerStrategy, num_ps: int) -> Placement:
    """Makes a strategy place its variables by bytes; call this before it creates any.

    Args:
      strategy: the strategy.
      num_ps: the number of its parameter servers.
    """
    extended = strategy.extended
    # The strategy's constructor creates this object and cannot be given another one.
    extended.__class__ = PlacingExtended
    extended.placement = Placement(num_ps)
    return extended.placement


def _is_uneven(loads: Sequence[int]) -> bool:
    mean = sum(loads) / len(loads)
    return max(loads) > MAX_SKEW * mean and max(loads) - mean >= _MIN_EXCESS_BYTES
