"""The tables of many features, looked up together: `FeatureEmbeddings`.

    from tfdist.layers import FeatureConfig, FeatureEmbeddings, TableConfig

    users = TableConfig("users", vocabulary_size=1_000_000, embedding_dim=16)
    words = TableConfig("words", vocabulary_size=50_000, embedding_dim=16, combiner="sum")
    tables = FeatureEmbeddings({
        "user": FeatureConfig(users),
        "title": FeatureConfig(words),
        "query": FeatureConfig(words),
    })
    rows = tables({"user": user, "title": title, "query": query})    # by feature, [batch, 16]

Tables of one dimension are one variable, so a step reads the rows of all their features at once:
one message to each ps, where a layer for each feature sends one for each. The records have the
fields of those of keras-rs (https://keras.io/keras_rs), whose own objects are accepted, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError

COMBINERS = ("mean", "sum", "sqrtn")


@dataclass(frozen=True)
class TableConfig:
    """A table, which features can share.

    Attributes:
      name: the name of the table.
      vocabulary_size: the number of rows; the ids are 0 to `vocabulary_size - 1`.
      embedding_dim: the number of columns.
      initializer: as in `keras.layers.Embedding`.
      optimizer: that of this table, with Keras 3; None for that of the model. See
        `FeatureEmbeddings.optimizer`.
      combiner: what becomes of several rows of an example: "mean", "sum", or "sqrtn", their sum
        divided by the square root of the sum of the squares of their weights.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: Any = "uniform"
    optimizer: Any = None
    combiner: str = "mean"


@dataclass(frozen=True)
class FeatureConfig:
    """A feature, whose ids are rows of a table."""

    table: TableConfig


@dataclass
class _Group:
    """The tables that are one variable: those of one dimension and one optimizer."""

    dimension: int
    optimizer: Any
    tables: list[Any] = field(default_factory=list)
    features: list[str] = field(default_factory=list)

    def first_row(self, table: Any) -> int:
        before = self.tables[: self.tables.index(table)]
        return sum(each.vocabulary_size for each in before)

    @property
    def rows(self) -> int:
        return sum(each.vocabulary_size for each in self.tables)


class _OfTables(tf.keras.initializers.Initializer):
    """The initial rows of all tables of a group, or of a part of them."""

    def __init__(self, tables: list[Any]) -> None:
        self._tables = [
            (each.vocabulary_size, tf.keras.initializers.get(each.initializer)) for each in tables
        ]

    def __call__(self, shape: Any, dtype: Any = None, **part: Any) -> tf.Tensor:
        columns = shape[-1]
        begin = part.get("partition_offset", (0,))[0]
        end = begin + part.get("partition_shape", shape)[0]
        found, first = [], 0
        for rows, initializer in self._tables:
            low, high = max(begin - first, 0), min(end - first, rows)
            if low < high:
                found.append(initializer((rows, columns), dtype=dtype)[low:high])
            first += rows
        return tf.concat(found, 0)


@tf.keras.utils.register_keras_serializable("tfdist")
class FeatureEmbeddings(tf.keras.layers.Layer):
    """The rows of many features, by feature.

    The layer takes ids by feature, and optionally `weights` by feature, of the shape of the ids.
    The ids of a feature are int32 or int64: dense, shape [batch] or [batch, n]; a `tf.RaggedTensor`
    with one ragged dimension; or a `tf.SparseTensor` of rank 2. It returns the combined rows by
    feature, shape [batch, embedding_dim]; zeros for an example without ids.

    Args:
      features: the `FeatureConfig` of each feature, by its name; or those of keras-rs.
      kwargs: the arguments of `keras.layers.Layer`.

    Raises:
      UsageError: a table has no rows, no columns or an unknown combiner, or two tables have the
        same name.
    """

    def __init__(self, features: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        groups: dict[Any, _Group] = {}
        by_name: dict[str, Any] = {}
        for name, config in features.items():
            table = _checked(config.table)
            if by_name.setdefault(table.name, table) != table:
                raise UsageError(
                    "TableConfig.name",
                    received=f"{table.name} for two tables",
                    accepted="a name for each table",
                    remedy="Give one of them another name.",
                )
            optimizer = table.optimizer
            key = table.embedding_dim, optimizer if isinstance(optimizer, str) else id(optimizer)
            group = groups.setdefault(key, _Group(table.embedding_dim, optimizer))
            group.features.append(name)
            if table not in group.tables:
                group.tables.append(table)
        # Keras would make its own copies of dicts and lists.
        self._by_name = _Untracked(dict(features))
        self._needs_optimizers = any(each.optimizer is not None for each in groups.values())
        self._groups = _Untracked(list(groups.values()))
        self._tables = [
            tf.keras.layers.Embedding(
                group.rows,
                group.dimension,
                embeddings_initializer=_OfTables(group.tables),
                name=f"{self.name}_{number}_of_{group.dimension}",
            )
            for number, group in enumerate(self._groups.value)
        ]

    def build(self, input_shape: Any = None) -> None:
        for table in self._tables:
            with tf.name_scope(table.name):  # Keras 2 takes the name of a variable from it.
                table.build((None,))
        self.built = True

    def call(
        self,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Any] | None = None,
        training: bool | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns the combined rows of each feature."""
        if training and self._needs_optimizers:
            raise UsageError(
                "TableConfig.optimizer",
                received=f"a table of {self.name} with one, in a model without",
                accepted="a model with the optimizers of its tables",
                remedy="Compile the model with tables.optimizer(…), where tables is that layer.",
            )
        features = self._by_name.value
        weights = weights or {}
        for what, given, needed in (("features", inputs, features), ("weights", weights, {})):
            if not needed.keys() <= given.keys() <= features.keys():
                raise UsageError(
                    f"the {what} of {self.name}",
                    received=", ".join(sorted(given)),
                    accepted=", ".join(sorted(features)),
                    remedy=f"Pass the {what} by the names of the features.",
                )
        for name, own_ids in inputs.items():
            _check_ids(name, own_ids)
        found: dict[str, tf.Tensor] = {}
        for group, table in zip(self._groups.value, self._tables, strict=True):
            tables = [features[name].table for name in group.features]
            ids = [tf.cast(_flat(inputs[name]), tf.int64) for name in group.features]
            # One operation for all features where there can be: many small ones take longer.
            sizes = tf.concat(tf.shape_n(ids), 0)
            feature_of = tf.repeat(tf.range(len(ids)), sizes)
            vocabularies = tf.constant([each.vocabulary_size for each in tables], tf.int64)
            begins = tf.constant([group.first_row(each) for each in tables], tf.int64)
            counts, first_rows = tf.gather(vocabularies, feature_of), tf.gather(begins, feature_of)
            own = tf.concat(ids, 0)
            # An id beyond its table would be one of the next table.
            places = tf.where((own >= 0) & (own < counts), own + first_rows, group.rows)
            rows = tf.ensure_shape(table(places), [None, group.dimension])
            parts = tf.split(rows, sizes, num=len(ids))
            for name, part in zip(group.features, parts, strict=True):
                combiner = features[name].table.combiner
                found[name] = _combined(inputs[name], part, weights.get(name), combiner)
        return {name: found[name] for name in features}

    def optimizer(self, of_the_model: Any) -> Any:
        """The optimizer to compile a model with: that of the model, and those of the tables.

        Args:
          of_the_model: the optimizer of all variables whose table has none.

        Returns:
          A `keras.optimizers.MultiOptimizer`; `of_the_model` if no table has an optimizer.

        Raises:
          UsageError: a table has an optimizer, and this Keras has no `MultiOptimizer`.
        """
        optimizers = tf.keras.optimizers
        by_path = {
            f"(.*/)?{table.name}/.*": optimizers.get(group.optimizer)
            for group, table in zip(self._groups.value, self._tables, strict=True)
            if group.optimizer is not None
        }
        if not by_path:
            return of_the_model
        if not hasattr(optimizers, "MultiOptimizer"):
            raise UsageError(
                "TableConfig.optimizer",
                received=", ".join(type(each).__name__ for each in by_path.values()),
                accepted="None with this Keras, which has one optimizer for all variables",
                remedy="Leave it out, or train with Keras 3.15 or newer.",
            )
        self._needs_optimizers = False
        return optimizers.MultiOptimizer(optimizers.OptimizerMap(of_the_model, by_path))

    def get_config(self) -> dict[str, Any]:
        serialize = tf.keras.initializers.serialize
        tables = {
            config.table.name: {
                "vocabulary_size": config.table.vocabulary_size,
                "embedding_dim": config.table.embedding_dim,
                "initializer": serialize(tf.keras.initializers.get(config.table.initializer)),
                "combiner": config.table.combiner,
            }
            for config in self._by_name.value.values()
        }
        of_features = {name: config.table.name for name, config in self._by_name.value.items()}
        return {**super().get_config(), "features": of_features, "tables": tables}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureEmbeddings:
        tables = {name: TableConfig(name, **own) for name, own in config.pop("tables").items()}
        of_features = config.pop("features")
        features = {name: FeatureConfig(tables[table]) for name, table in of_features.items()}
        return cls(features, **config)


@dataclass(frozen=True)
class _Untracked:
    """Keeps a value from Keras, which tracks dicts and lists of layers."""

    value: Any


def _checked(table: Any) -> Any:
    if table.combiner not in COMBINERS:
        raise UsageError.choice("TableConfig.combiner", table.combiner, COMBINERS)
    for name in ("vocabulary_size", "embedding_dim"):
        if getattr(table, name) < 1:
            raise UsageError(
                f"TableConfig.{name}",
                received=getattr(table, name),
                accepted="a positive number",
                remedy=f"Correct it in the table {table.name}.",
            )
    return table


def _check_ids(name: str, ids: Any) -> None:
    if not tf.as_dtype(ids.dtype).is_integer or ids.shape.rank not in (1, 2):
        raise UsageError(
            f"the feature {name}",
            received=f"{tf.as_dtype(ids.dtype).name} of shape {ids.shape}",
            accepted="int32 or int64 of shape [batch] or [batch, n]",
            remedy="Convert or reshape the ids in the input function.",
        )


def _flat(ids: Any) -> tf.Tensor:
    """All ids of a batch, in one dimension."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.flat_values
    if isinstance(ids, tf.SparseTensor):
        return ids.values
    return ids if tf.is_tensor(ids) and ids.shape.rank == 1 else tf.reshape(ids, [-1])


def _combined(ids: Any, rows: tf.Tensor, weights: Any, combiner: str) -> tf.Tensor:
    """The rows of each example in one.

    Args:
      ids: the ids of the feature.
      rows: their rows, shape [number of ids, dimension].
      weights: the weights of the ids, like `ids`; None for 1.
      combiner: one of `COMBINERS`.
    """
    if weights is None and (ids.shape.rank == 1 or ids.shape[1:] == [1]):
        return rows
    weight = tf.ones_like(rows[:, :1])
    if weights is not None:
        weight = tf.cast(_flat(weights), rows.dtype)[:, tf.newaxis]
    if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        is_ragged = isinstance(ids, tf.RaggedTensor)
        examples = ids.value_rowids() if is_ragged else ids.indices[:, 0]
        count = ids.nrows() if is_ragged else ids.dense_shape[0]

        def sums(values: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(values, examples, count)
    else:
        several = tf.shape(ids)[1] if ids.shape.rank > 1 else 1

        def sums(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.reshape(values, [-1, several, values.shape[-1]]), 1)

    total = sums(rows * weight)
    if combiner == "mean":
        return tf.math.divide_no_nan(total, sums(weight))
    return total if combiner == "sum" else tf.math.divide_no_nan(total, sums(weight**2) ** 0.5)
