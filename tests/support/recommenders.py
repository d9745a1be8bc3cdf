"""Models and metrics of recommenders, for `habits`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.keras import is_keras_3
from tfdist.layers import DynamicEmbedding, FeatureConfig, FeatureEmbeddings, TableConfig

IS_KERAS_3 = is_keras_3(tf.keras.Model)
layers, optimizers = tf.keras.layers, tf.keras.optimizers


def of_features() -> Any:
    """A model with the tables of several features, one of which has an optimizer of its own."""
    own = {"optimizer": optimizers.Adagrad(0.5)} if IS_KERAS_3 else {}
    days = TableConfig("days", 5, 4, initializer=initializer(1))
    others = TableConfig("others", 6, 4, initializer=initializer(2), combiner="sqrtn")
    small = TableConfig("small", 5, 2, initializer=initializer(3), combiner="sum", **own)
    features = {"one": days, "several": others, "again": days, "apart": small}
    tables = FeatureEmbeddings({name: FeatureConfig(each) for name, each in features.items()})
    shapes = {"one": [], "several": [3], "again": [3], "apart": [1]}
    inputs = {name: tf.keras.Input(shapes[name], dtype="int64", name=name) for name in shapes}
    rows = layers.Concatenate()(list(tables(inputs).values()))
    model = tf.keras.Model(inputs, layers.Dense(1)(rows))
    model.compile(tables.optimizer(optimizers.Adam(0.05)), "mse")
    return model


def initializer(seed: int) -> Any:
    """Random initial rows."""
    return tf.keras.initializers.RandomUniform(seed=seed)


class GroupAUC(tf.keras.metrics.Metric):
    """The mean over the groups of examples of the area under the curve of each group."""

    bins = 64

    def __init__(self) -> None:
        super().__init__(name="group_auc")
        shape = (5, 2, self.bins)
        self.counts = self.add_weight(name="counts", shape=shape, initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        places = tf.cast(tf.cast(y_pred, tf.float32) * (self.bins - 1), tf.int32)
        places = tf.concat(
            [tf.cast(y_true[:, 1:], tf.int32), tf.cast(y_true[:, :1], tf.int32), places], 1
        )
        self.counts.assign_add(
            tf.scatter_nd(places, tf.ones(tf.shape(places)[:1]), [5, 2, self.bins])
        )

    def reset_state(self) -> None:
        # Keras 2 can only reset numbers.
        self.counts.assign(tf.zeros_like(self.counts))

    def result(self) -> Any:
        counts = tf.convert_to_tensor(self.counts)
        below = tf.cumsum(counts[:, 0], 1, exclusive=True) + counts[:, 0] / 2
        pairs = tf.reduce_sum(counts[:, 1] * below, 1)
        areas = tf.math.divide_no_nan(pairs, tf.reduce_prod(tf.reduce_sum(counts, 2), 1))
        return tf.reduce_mean(areas)


def gain(y_true: Any, scores: Any) -> Any:
    """The normalized discounted cumulative gain of each example; its first label is relevant."""
    relevance = tf.stack([y_true[:, 0], 1 - y_true[:, 0], 0 * y_true[:, 0]], 1)
    places = tf.argsort(tf.argsort(scores, direction="DESCENDING", stable=True))
    return tf.reduce_sum(
        relevance / (tf.math.log(tf.cast(places, tf.float32) + 2.0) / np.log(2)), 1
    )


def of_ranking() -> Any:
    """A model of clicks by groups, with the metrics of recommenders."""
    inputs = tf.keras.Input([4])
    click = layers.Dense(1, "sigmoid", name="click")(inputs)
    items = layers.Dense(3, "softmax", name="items")(inputs)
    model = tf.keras.Model(inputs, {"click": click, "items": items})
    kinds = tf.keras.metrics
    model.compile(
        optimizers.Adam(0.05),
        {
            "click": lambda y, p: tf.keras.losses.binary_crossentropy(y[:, :1], p),
            "items": tf.keras.losses.SparseCategoricalCrossentropy(),
        },
        metrics={
            "click": [GroupAUC()],
            "items": [
                kinds.SparseTopKCategoricalAccuracy(2, name="recall_at_2"),
                kinds.MeanMetricWrapper(gain, name="ndcg"),
            ],
        },
    )
    return model


def two_optimizers() -> Any:
    """A table that Adagrad trains, with the other layers by Adam."""
    inputs = tf.keras.Input([1], dtype="int64")
    hidden = layers.Flatten()(layers.Embedding(5, 4, name="table")(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Dense(3, "tanh")(hidden)))
    by_path = optimizers.OptimizerMap(optimizers.Adam(0.05), {"table/.*": optimizers.Adagrad(0.5)})
    model.compile(optimizers.MultiOptimizer(by_path), "mse")
    return model


def of_dynamic_ids() -> Any:
    """A table for ids without a vocabulary."""
    inputs = tf.keras.Input([1], dtype="int64")
    table = DynamicEmbedding(4, 6, initializer=initializer(1), name="dynamic")
    hidden = layers.Flatten()(table(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizers.Adagrad(0.5), "mse")
    return model
