"""A table of rows for ids that come and go: `DynamicEmbedding`.

    table = tfdist.layers.DynamicEmbedding(16, capacity=1_000_000, admit_after=2)
    rows = table(ids)      # int64 or string ids, any of them; [batch, …, 16]

It needs no vocabulary: an id gets a row when it is met in training for the `admit_after`-th time,
and its memory is that of `capacity` rows. When a checkpoint is saved and few rows are free, the ids
that have not been met for the longest time lose theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.layers.row_index import (
    ARRIVALS,
    FREE,
    TOTALS,
    RowIndex,
    is_remote,
    mixed,
    scatter,
    written,
)
from tfdist.upstream import keras3_autocast

POLICIES = ("age", "frequency")

# The values from which those of a new row are drawn, for each column; a power of two.
_POOL = 1024
# The ids of strings: of two in a billion, the chance that any two are equal is 0.06.
_FINGERPRINTS = 2**63 - 1


@tf.keras.utils.register_keras_serializable("tfdist")
class DynamicEmbedding(tf.keras.layers.Layer):
    """The rows of ids that need no vocabulary.

    The layer takes ids, int32, int64 or strings of any shape, and returns their rows, which have
    one dimension more. Strings are known by a fingerprint of 63 bits
    (`tf.strings.to_hash_bucket_fast`). Ids without a row have the last one in common, which is
    trained, too. Outside of training no id is admitted.

    A new row depends on the id and on the values that `initializer` has drawn once: each of its
    elements is one of them. So it is the same on any number of tasks, in any order.

    Args:
      dimension: the number of columns.
      capacity: the number of ids that can have a row at the same time.
      initializer: as in `keras.layers.Embedding`.
      admit_after: how often an id is met in training before it gets a row. The counters have twice
        `capacity` places, so ids that share one are admitted sooner.
      eviction_policy: which ids lose their rows when a checkpoint is saved: "age", those that were
        not met for the longest time; or "frequency", those that were met least, where each
        eviction halves what was counted before.
      free: the share of the rows that eviction keeps free, once the table was full: at least that
        of the new ids between two saves.
      evict_after: the train steps without an id after which it loses its row at the next save, also
        if there are free rows; None for any number. It takes all steps to call the layer as often.
      kwargs: the arguments of `keras.layers.Layer`.

    Raises:
      UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        dimension: int,
        capacity: int,
        *,
        initializer: Any = "uniform",
        admit_after: int = 1,
        eviction_policy: str = "age",
        free: float = 0.3,
        evict_after: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (
            ("dimension", dimension),
            ("capacity", capacity),
            ("admit_after", admit_after),
            ("evict_after", 1 if evict_after is None else evict_after),
        ):
            is_right = isinstance(value, int) and value >= 1
            _check(name, value, is_right, "a positive whole number")
        _check("free", free, 0 < free < 1, "a number between 0 and 1")
        if eviction_policy not in POLICIES:
            raise UsageError.choice("eviction_policy", eviction_policy, POLICIES)
        self.dimension, self.capacity = dimension, capacity
        self.initializer = tf.keras.initializers.get(initializer)
        self.admit_after = admit_after
        self.eviction_policy = eviction_policy
        self.free, self.evict_after = free, evict_after
        self.supports_jit = False  # For Keras 3: XLA has no hash tables.
        self.table = tf.keras.layers.Embedding(
            capacity + 1, dimension, embeddings_initializer="zeros", name=f"{self.name}_rows"
        )
        # The rows of the ids while the model is exported; see `exporting`. Keras 2 restores the
        # attribute `exported` of a loaded model, but not the other one.
        self.exported: Any = None
        self._is_exporting = False
        #: Returns the ids of all replicas, those of this one first, where each replica has its own
        #: copies of the variables; None where all have the same ones. Set before the first step.
        self.gather: Callable[[tf.Tensor], tf.Tensor] | None = None

    def build(self, input_shape: Any = None) -> None:
        with tf.name_scope(self.table.name):  # Keras 2 takes the name of a variable from it.
            self.table.build((None,))
        self.clock = self._state("clock", [])
        self.ids = self._state("ids", [self.capacity], tf.keras.initializers.Constant(FREE))
        self.seen = self._state("seen", [self.capacity + 1])
        if self.eviction_policy == "frequency":
            self.count = self._state("count", [self.capacity + 1])
        self.totals = self._state("totals", [TOTALS])
        if self.admit_after > 1:
            self.arrivals = self._state("arrivals", [ARRIVALS * self.capacity])
        self.pool = self._state("pool", [_POOL, self.dimension], self.initializer, tf.float32)
        if keras_compat.is_keras_3(self):
            keras3_autocast.keep_dtype([self.pool, *(part for part, _, _ in self._parts())])
        self._index = RowIndex(self, self._write)
        self.built = True

    def _state(
        self, name: str, shape: list[int], initializer: Any = "zeros", dtype: Any = tf.int64
    ) -> Any:
        """Adds a variable that no optimizer trains.

        On parameter servers it is where the rows are, so that a step asks one ps. If the rows are
        on several, all such variables are where `clock` is, which has no parts.
        """
        strategy, scope, parts = tf.distribute.get_strategy(), nullcontext(), self._parts()
        beside = getattr(self, "clock", parts[0][0] if len(parts) == 1 else None)
        if beside is not None and is_remote(strategy):
            (variable,) = keras_compat.as_tensorflow([beside])
            scope = strategy.extended.colocate_vars_with(variable)
        with scope:
            return self.add_weight(
                name=name, shape=shape, dtype=dtype.name, initializer=initializer, trainable=False
            )

    # Keras 2 would convert all that is called here.
    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """Returns the rows of the ids."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values, training))
        if isinstance(inputs, tf.SparseTensor):
            raise _wrong_ids(
                "a SparseTensor", "a dense or ragged tensor", "tf.RaggedTensor.from_sparse"
            )
        inputs = tf.convert_to_tensor(inputs)
        ids = tf.reshape(_as_int64(inputs), [-1])
        if self._is_exporting:
            places = self.exported.lookup(ids)
        elif training and self.trainable:
            self._check_replicas()
            of_all = ids if self.gather is None else self.gather(ids)
            places = self._index.admit(of_all, tf.size(ids))
        else:
            places = self._index.find(ids)
        return self.table(tf.reshape(places, tf.shape(inputs)))

    def _check_replicas(self) -> None:
        (ids,) = keras_compat.as_tensorflow([self.ids])
        horovod = sys.modules.get("horovod.tensorflow")  # It may have no strategy of TensorFlow.
        replicas = horovod.size() if horovod is not None and horovod.is_initialized() else 1
        if hasattr(ids, "values"):
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self.gather is None and replicas > 1:
            raise UsageError(
                f"the layer {self.name}",
                received=f"a train step of {replicas} replicas that do not know each other's ids",
                accepted="one of job.fit, or of model.fit with job.callbacks",
                remedy="Train with one of them, or under parameter servers.",
            )

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.dimension)

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """In this block, the layer is an `Embedding` with a `StaticHashTable`, for a SavedModel."""
        ids, rows = self._index.entries(-1)
        with tf.init_scope():
            # TensorFlow refuses to make a table without a key.
            ids, rows = tf.concat([ids, [FREE]], 0), tf.concat([rows, [self.capacity]], 0)
            entries = tf.lookup.KeyValueTensorInitializer(ids, rows)
            self.exported = tf.lookup.StaticHashTable(entries, self.capacity)
        self._is_exporting = True
        try:
            yield
        finally:
            self.exported, self._is_exporting = None, False

    def evict(self, optimizers: Iterable[Any], steps: int | None = None) -> np.ndarray:
        """Frees rows, if the table was full or ids are too old, and resets what optimizers know.

        Call it between two train steps, in every task.

        Args:
          optimizers: those that train the table.
          steps: the train steps so far, which may have called the layer several times; None if each
            call is a step.

        Returns:
          The ids that have lost their row, int64.
        """
        max_age = self.evict_after
        if max_age is not None and steps:
            max_age = max_age * self.calls() // steps
        rows = self._index.victims(max(1, int(self.free * self.capacity)), max_age)
        if not len(rows):
            return np.zeros([0], np.int64)
        evicted: np.ndarray = self._index.evict(rows).numpy()
        self._index.halve_counts()
        for optimizer in optimizers:
            self._reset_slots(optimizer, rows)
        return evicted

    def facts(self) -> dict[str, int]:
        """How many rows have an id; and how often an id was admitted, evicted, and refused because
        no row was free, since the table was made."""
        admitted, evicted, refused = self._index.totals()
        facts = {"rows": admitted - evicted, "admitted": admitted, "evicted": evicted}
        return {**facts, "refused": refused}

    def calls(self) -> int:
        """How often train steps have called the layer, in all workers that share it."""
        return int(self._index.clock())

    def rows(self, since: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """The ids that have a row, int64 of shape [n], and their rows, of shape [n, dimension].

        Args:
          since: only ids that were met after this number of `calls`.
        """
        ids, places = self._index.entries(since)
        return ids.numpy(), np.asarray(self.table(places))

    def set_rows(self, ids: Any, rows: Any, of_others: Any = None) -> int:
        """Gives ids their rows, as far as there are free ones. Call it between two train steps.

        Args:
          ids: different ids, int64, shape [n].
          rows: shape [n, dimension].
          of_others: the row of ids without one, shape [dimension]; None to keep it.

        Returns:
          How many ids have their row now.
        """
        ids = tf.convert_to_tensor(ids, tf.int64)
        places = self._index.give(ids)
        is_placed = places >= 0
        values = tf.boolean_mask(tf.convert_to_tensor(rows, tf.float32), is_placed)
        self._scatter(tf.boolean_mask(places, is_placed), values)
        if of_others is not None:
            last = tf.constant([self.capacity], tf.int64)
            self._scatter(last, tf.convert_to_tensor([of_others], tf.float32))
        return len(values)

    def remove(self, ids: Any) -> None:
        """Takes the rows of ids that have one. Call it between two train steps."""
        places = self._index.find(tf.convert_to_tensor(ids, tf.int64))
        self._index.evict(tf.boolean_mask(places, places < self.capacity))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dimension": self.dimension,
            "capacity": self.capacity,
            "initializer": tf.keras.initializers.serialize(self.initializer),
            "admit_after": self.admit_after,
            "eviction_policy": self.eviction_policy,
            "free": self.free,
            "evict_after": self.evict_after,
        }

    def _parts(self) -> list[tuple[Any, int, int]]:
        """The variables of the table, and the rows that each has: from, to."""
        whole = self.table.embeddings
        # In parts with --partition_bytes: a `ShardedVariable`, or a `SplitVariable` of tfdist.
        parts = getattr(whole, "parts", None) or getattr(whole, "variables", None) or [whole]
        ends = list(accumulate(int(part.shape[0]) for part in parts))
        return list(zip(parts, [0, *ends], ends, strict=False))

    def _write(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Writes the first values of new rows."""
        columns = tf.range(self.dimension, dtype=tf.int64)
        picks = tf.bitwise.bitwise_and(
            mixed(mixed(ids)[:, tf.newaxis] + columns), tf.constant(_POOL - 1, tf.int64)
        )
        places = tf.stack([picks, tf.broadcast_to(columns, tf.shape(picks))], -1)
        # With mixed precision, the variable itself would be read in 16 bits.
        pool = written(self.pool)[0].handle
        values = tf.raw_ops.ResourceGatherNd(resource=pool, indices=places, dtype=tf.float32)
        self._scatter(rows, values)

    def _scatter(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        for part, begin, end in self._parts():
            is_here = (rows >= begin) & (rows < end)
            places, own = tf.boolean_mask(rows, is_here) - begin, tf.boolean_mask(values, is_here)
            for variable in written(part):
                scatter("Update", variable.handle, places, tf.cast(own, variable.dtype))

    def _reset_slots(self, optimizer: Any, rows: tf.Tensor) -> None:
        """Sets what an optimizer has learned of rows to its first values."""
        for part, begin, end in self._parts():
            own = tf.boolean_mask(rows, (rows >= begin) & (rows < end)) - begin
            for slot, value in _slots_of(optimizer, part):
                for variable in written(slot):
                    first = tf.fill([tf.size(own), self.dimension], value)
                    scatter("Update", variable.handle, own, first)


def of_model(model: Any, *, built: bool = True) -> list[DynamicEmbedding]:
    """The dynamic tables of a model; with `built`, those that have variables."""
    tracked = keras_compat.tracked_by(model)
    tables = [each for each in tracked if isinstance(each, DynamicEmbedding)]
    return [each for each in tables if each.built or not built]


def _slots_of(optimizer: Any, variable: Any) -> list[tuple[Any, float]]:
    """The variables that an optimizer has for another one, and the first value of each."""
    if path := getattr(variable, "path", ""):  # Keras 3
        begin = f"{path.replace('/', '_')}_"
        slots = [each for each in optimizer.variables if each.name.startswith(begin)]
    else:
        name = f"/{variable.name.partition(':')[0]}"
        slots = [each for each in keras_compat.optimizer_variables(optimizer) if name in each.name]
    first = optimizer.get_config().get("initial_accumulator_value", 0.0)
    return [
        (each, first if "accumulator" in each.name else 0.0)
        for each in slots
        if tuple(each.shape) == tuple(variable.shape)
    ]


def _as_int64(ids: tf.Tensor) -> tf.Tensor:
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, _FINGERPRINTS)
    if not ids.dtype.is_integer:
        raise _wrong_ids(ids.dtype.name, "int32, int64 or string", "tf.cast")
    return tf.cast(ids, tf.int64)


def _wrong_ids(received: str, accepted: str, converter: str) -> UsageError:
    return UsageError(
        "the ids of DynamicEmbedding",
        received=received,
        accepted=accepted,
        remedy=f"Convert them with {converter}.",
    )


def _check(name: str, value: Any, is_right: bool, accepted: str) -> None:
    if not is_right:
        raise UsageError(
            f"DynamicEmbedding({name})", received=value, accepted=accepted, remedy="Correct it."
        )
