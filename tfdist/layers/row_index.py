"""Gives each id of a stream a row of a table: `RowIndex`, the index of a `DynamicEmbedding`.

    index.admit(ids)      # in a train step: the row of each id, after new ids have got theirs
    index.find(ids)       # otherwise: the row of each id; `capacity` if it has none

What must survive is in variables of int64: `ids`, `seen` and `count` have the id of each row, the
step that met it last, and how often it was met; `count` only for eviction by frequency. Beside them
are a hash table from ids to rows and a stack of free rows, which are made again from `ids` when the
variables were restored. `totals` tells that: it has a checksum of the ids and their rows. `clock`
counts the train steps, of each worker on parameter servers.

Several workers may admit the same id at once, so only one of them at a time gives out rows, in a
`tf.CriticalSection` on the ps of the variables. Where replicas have their own copies of the
variables, all of them admit the ids of all replicas, in the same order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat

#: The id of a row that is free.
FREE = tf.int64.min

#: The places in `totals`: ids admitted, ids evicted, how often an id found no free row, and the
#: checksum.
ADMITTED, EVICTED, REFUSED, CHECKSUM = range(4)
TOTALS = 4

#: Multiplied by the number of rows: the counters of the ids that are not admitted yet.
ARRIVALS = 2


class RowIndex:
    """Which row each id has. Used only in the layer that adds its variables.

    Args:
      layer: the layer, a `DynamicEmbedding`, which is built.
      write: writes the first values of the rows of new ids; takes the ids and their rows.
    """

    def __init__(self, layer: Any, write: Callable[[tf.Tensor, tf.Tensor], None]) -> None:
        self._layer = layer
        self._write = write
        self._capacity: int = layer.capacity
        self._counts = layer.eviction_policy == "frequency"
        (clock,) = keras_compat.as_tensorflow([layer.clock])
        self._device = clock.device if is_remote(tf.distribute.get_strategy()) else "CPU:0"
        with tf.init_scope(), tf.device(self._device):
            self._rows = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
            self._stack = _Cell(tf.range(self._capacity, dtype=tf.int64))
            self._used = _Cell(tf.zeros([], tf.int64))
            self._checksum = _Cell(tf.zeros([], tf.int64))
            self._section = tf.CriticalSection(name="row_index")

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """The row of each id; `capacity` if it has none.

        Args:
          ids: int64, shape [n].
        """
        with tf.device(self._device):
            self._follow_restored()
            rows = self._row_of(ids)
            return tf.where(rows < 0, tf.constant(self._capacity, tf.int64), rows)

    def admit(self, ids: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
        """Like `find` for the first `own` ids, after a row was given to each new id.

        Args:
          ids: the ids of a train step, int64, shape [n].
          own: a number of ids, int32.
        """
        with tf.device(self._device):
            clock = self.clock(1)
            found, is_known = self._known(ids)
            rows = tf.cond(
                tf.reduce_all(is_known) & self._is_current(),
                lambda: found,
                lambda: self._with_new(ids),
            )
            rows = tf.where(rows < 0, tf.constant(self._capacity, tf.int64), rows)
            self._scatter("Update", "seen", rows, tf.fill(tf.shape(rows), clock))
            if self._counts:
                self._scatter("Add", "count", rows, tf.ones_like(rows))
            return rows if self._layer.gather is None else rows[:own]

    def _known(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each id, or -1; and whether it is that of the id in these variables."""
        found = self._row_of(ids)
        is_known = found >= 0
        if self._layer.gather is None:
            return found, is_known
        # Another replica of this process may have admitted the id for its own copies.
        return found, is_known & tf.equal(self._gather("ids", tf.maximum(found, 0)), ids)

    def give(self, ids: tf.Tensor) -> tf.Tensor:
        """The row of each id, after those without one have got a free one; or -1 if none is free.

        Called eagerly, between two train steps.

        Args:
          ids: int64, shape [n], all different.
        """
        with tf.device(self._device):
            self._follow_restored()
            self._alone(lambda: self._give_rows(ids))
            return self._row_of(ids)

    def evict(self, rows: tf.Tensor) -> tf.Tensor:
        """Frees rows; returns the ids that had them. Called eagerly, between two train steps."""
        with tf.device(self._device):
            self._follow_restored()
            ids, used = self._gather("ids", rows), self._used.read()
            count = tf.size(rows, tf.int64)
            self._rows.remove(ids)
            self._stack.update(tf.range(used - count, used), rows)
            self._used.write(used - count)
            self._checksum.write(self._checksum.read() - _checksum(ids, rows))
            self._scatter("Update", "ids", rows, tf.fill(tf.shape(rows), FREE))
            self._total(EVICTED, count)
            self._set_checksum()
            return ids

    def halve_counts(self) -> None:
        """Lets what was met often long ago count less than what is met often now."""
        for handle in self._handles("count") if self._counts else ():
            tf.raw_ops.AssignVariableOp(resource=handle, value=_read(handle, [None]) // 2)

    def totals(self) -> list[int]:
        """How often an id was admitted, evicted and refused. Called eagerly."""
        found: list[int] = self._read("totals").numpy().tolist()
        return found[:CHECKSUM]

    def entries(self, since: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The ids that have a row, and their rows. Called eagerly, between two train steps.

        Args:
          since: only ids that were met after this value of `clock`.
        """
        ids, seen = self._read("ids"), self._read("seen")[: self._capacity]
        rows = tf.where((ids != FREE) & (seen > since))[:, 0]
        return tf.gather(ids, rows), rows

    def victims(self, free: int, max_age: int | None) -> tf.Tensor:
        """The rows to evict now. Called eagerly, between two train steps.

        Args:
          free: how many rows must be free, if there were too few once.
          max_age: the largest difference to `clock` when an id was met; None for any.
        """
        with tf.device(self._device):
            ids, clock = self._read("ids"), self.clock()
            seen = self._read("seen")[: self._capacity]
            is_used = ids != FREE
            is_old = is_used & (seen < clock - (max_age or clock + 1))
            if not self._total(REFUSED):
                return tf.where(is_old)[:, 0]
            order = seen
            if self._counts:  # Those that are met as often are evicted by their age.
                order += self._read("count")[: self._capacity] * 2**32
            order = tf.where(is_old, -1, tf.where(is_used, order, tf.int64.max))
            used = tf.reduce_sum(tf.cast(is_used, tf.int32))
            old = tf.reduce_sum(tf.cast(is_old, tf.int32))
            wanted = tf.maximum(old, used - (self._capacity - free))
            if not wanted:
                return tf.zeros([0], tf.int64)
            last = -tf.math.top_k(-order, wanted).values[-1]
            before, ties = tf.where(order < last)[:, 0], tf.where(tf.equal(order, last))[:, 0]
            # By the ids, because an id may have another row after a restart.
            left = wanted - tf.size(before)
            chosen = tf.math.top_k(mixed(tf.gather(ids, ties)), left).indices
            return tf.concat([before, tf.gather(ties, chosen)], 0)

    def _with_new(self, ids: tf.Tensor) -> tf.Tensor:
        self._follow_restored()
        _, is_known = self._known(ids)
        is_known |= tf.equal(ids, FREE)
        # Sorted, because each replica has its own ids first.
        new = tf.sort(tf.boolean_mask(ids, ~is_known))
        new, _, counts = tf.unique_with_counts(new, tf.int64)
        if self._layer.admit_after > 1:
            width = tf.constant(ARRIVALS * self._capacity, tf.int64)
            places = tf.math.floormod(mixed(new), width)
            self._scatter("Add", "arrivals", places, counts)
            new = tf.boolean_mask(new, self._gather("arrivals", places) >= self._layer.admit_after)
        self._alone(lambda: self._give_rows(new))
        self._total(REFUSED, tf.reduce_sum(tf.cast(self._row_of(new) < 0, tf.int64)))
        return self._row_of(ids)

    def _alone(self, work: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Calls a function while no other worker does, and until all its operations have ended."""
        # Not kept: a function that is traced for one replica has the variables of that replica.
        call = tf.function(work, autograph=False)
        with tf.device(None):  # A ps that ran the function would not know the other ones.
            return self._section.execute(lambda: call(), exclusive_resource_access=False)

    def _give_rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Gives a free row to each id that has none, as long as there are free rows."""
        with tf.device(self._device):
            found, used = self._row_of(ids), self._used.read()
            is_absent = found < 0
            place = used + tf.cumsum(tf.cast(is_absent, tf.int64)) - 1
            gets_row = is_absent & (place < self._capacity)
            free = self._stack.gather(tf.minimum(place, self._capacity - 1))
            rows = tf.where(gets_row, free, found)
            # A worker that finds the row in the table may train it, so it is written before.
            writes = rows >= 0 if self._layer.gather else gets_row
            written, places = tf.boolean_mask(ids, writes), tf.boolean_mask(rows, writes)
            self._scatter("Update", "ids", places, written)
            self._scatter("Update", "seen", places, tf.fill(tf.shape(places), self.clock()))
            if self._counts:
                self._scatter("Update", "count", places, tf.zeros_like(places))
            self._write(written, places)
            new, new_rows = tf.boolean_mask(ids, gets_row), tf.boolean_mask(rows, gets_row)
            self._rows.insert(new, new_rows)
            self._used.write(used + tf.size(new, tf.int64))
            self._checksum.write(self._checksum.read() + _checksum(new, new_rows))
            self._total(ADMITTED, tf.size(written, tf.int64))
            self._set_checksum()
            return tf.size(new)

    def _follow_restored(self) -> None:
        """Makes the table and the stack again if the variables have other ids."""
        tf.cond(
            self._is_current(),
            lambda: tf.zeros([], tf.int64),
            lambda: self._alone(self._rebuild),
        )

    def _is_current(self) -> tf.Tensor:
        return tf.equal(self._total(CHECKSUM), self._checksum.read())

    def _rebuild(self) -> tf.Tensor:
        with tf.device(self._device):
            ids = self._read("ids")
            rows, free = tf.where(ids != FREE)[:, 0], tf.where(ids == FREE)[:, 0]
            self._rows.remove(self._rows.export()[0])
            self._rows.insert(tf.gather(ids, rows), rows)
            self._stack.write(tf.concat([rows, free], 0))
            self._used.write(tf.size(rows, tf.int64))
            checksum = _checksum(tf.gather(ids, rows), rows)
            self._checksum.write(checksum)
            self._set_checksum()
            return checksum

    def _set_checksum(self) -> None:
        self._scatter("Update", "totals", tf.constant([CHECKSUM]), [self._checksum.read()])

    def clock(self, change: int = 0) -> tf.Tensor:
        """The number of train steps, after `change` was added."""
        if change:
            (handle,) = self._handles("clock")
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.constant(change, tf.int64))
        return _read(self._handles("clock")[0], [])

    def _total(self, place: int, change: Any = None) -> tf.Tensor:
        """One of the totals, after `change` was added."""
        if change is not None:
            self._scatter("Add", "totals", tf.constant([place]), [tf.cast(change, tf.int64)])
        return self._gather("totals", tf.constant(place))

    # With operations on handles: what the methods of a variable do depends on the strategy, and
    # `parameter_server --sync` records assignments instead of making them.

    def _row_of(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.reshape(self._rows.lookup(ids), [-1])  # Its rank is unknown otherwise.

    def _handles(self, name: str) -> list[tf.Tensor]:
        return [each.handle for each in written(getattr(self._layer, name))]

    def _read(self, name: str) -> tf.Tensor:
        return _read(self._handles(name)[0], [None])

    def _gather(self, name: str, indices: tf.Tensor) -> tf.Tensor:
        return _gather(self._handles(name)[0], indices)

    def _scatter(self, kind: str, name: str, indices: tf.Tensor, updates: Any) -> None:
        for handle in self._handles(name):
            scatter(kind, handle, indices, updates)


class _Cell:
    """An int64 variable of this process, or of a ps, that is not saved and that no replica copies.

    Args:
      initial: its first value.
    """

    def __init__(self, initial: tf.Tensor) -> None:
        self._shape = initial.shape
        self._handle = tf.raw_ops.VarHandleOp(
            dtype=initial.dtype, shape=initial.shape, shared_name=f"tfdist_{uuid.uuid4().hex}"
        )
        self.write(initial)

    def read(self) -> tf.Tensor:
        return _read(self._handle, self._shape)

    def gather(self, indices: tf.Tensor) -> tf.Tensor:
        return _gather(self._handle, indices)

    def update(self, indices: tf.Tensor, values: tf.Tensor) -> None:
        scatter("Update", self._handle, indices, values)

    def write(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)


# The shape of a handle is not known in a function.
def _read(handle: tf.Tensor, shape: Any) -> tf.Tensor:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
    return tf.ensure_shape(value, shape)


def _gather(handle: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    values = tf.raw_ops.ResourceGather(resource=handle, indices=indices, dtype=tf.int64)
    return tf.ensure_shape(values, indices.shape)


def is_remote(strategy: tf.distribute.Strategy) -> bool:
    """Whether the variables of a strategy are on parameter servers."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def written(variable: Any) -> list[tf.Variable]:
    """The variables to write: that of this replica, or all copies outside of a replica's step."""
    (variable,) = keras_compat.as_tensorflow([variable])
    if not tf.distribute.in_cross_replica_context():
        return [variable]
    return list(getattr(variable, "values", None) or [variable])


def scatter(kind: str, handle: tf.Tensor, indices: tf.Tensor, updates: Any) -> None:
    operation = getattr(tf.raw_ops, f"ResourceScatter{kind}")
    operation(resource=handle, indices=indices, updates=updates)


def mixed(values: tf.Tensor) -> tf.Tensor:
    """A pseudorandom number for each one: int64, not negative; the steps of SplitMix64.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    x = tf.bitcast(values, tf.uint64) + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = _xor_shifted(x, shift) * tf.constant(factor, tf.uint64)
    return tf.bitcast(
        tf.bitwise.right_shift(_xor_shifted(x, 31), tf.constant(1, tf.uint64)), tf.int64
    )


def _xor_shifted(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64)))


def _checksum(ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(mixed(tf.bitwise.bitwise_xor(mixed(ids), rows)))
