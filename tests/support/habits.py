"""What users of Keras do, by the name of a case: layers, callbacks, metrics and arguments of `fit`.

A case is right if N replicas give the weights and the history of one process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.recommenders import of_dynamic_ids, of_features, of_ranking, two_optimizers
from tfdist.compat.keras import is_keras_3

IS_KERAS_3 = is_keras_3(tf.keras.Model)
EXAMPLES, GLOBAL_BATCH = 48, 12
WORDS = np.array(["mon", "tue", "wed", "thu", "fri"])
layers, optimizers, callbacks = tf.keras.layers, tf.keras.optimizers, tf.keras.callbacks

_random = np.random.default_rng(0)
POINTS = _random.normal(size=[EXAMPLES, 4]).astype("float32")
SUMS = POINTS.sum(1, keepdims=True)
CLASSES = (POINTS[:, :3].argmax(1)).astype("int64")
DAYS = _random.integers(0, 5, EXAMPLES)
# Negative numbers are outside a row.
ROWS = np.where(np.arange(3) <= DAYS[:, None] % 3, DAYS[:, None], -1)
# The batches of two replicas have other statistics than one of them.
SCALED = POINTS * (1 + 2 * (np.arange(EXAMPLES) % 2))[:, None].astype("float32")
FEATURES = {"one": DAYS, "several": abs(ROWS), "again": ROWS % 5, "apart": DAYS[:, None]}
# Whether the example was clicked, and its group.
CLICKS = np.stack([SUMS[:, 0] > 0, DAYS], 1).astype("float32")
WEIGHTS = _random.uniform(0.5, 2.0, [EXAMPLES]).astype("float32")
# 16 bits round these features to whole numbers; 32 bits do not.
WHOLE = np.clip(POINTS.round(), -2, 2)
NEARLY_WHOLE = WHOLE * np.float32(1 + 2**-12)
WHOLE_SUMS = WHOLE.sum(1, keepdims=True)
OVERFLOWING = np.where(np.arange(EXAMPLES)[:, None] == 17, np.float32(1e6), NEARLY_WHOLE)


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
      build: returns a compiled model; takes the saved model if it `loads` one.
      arrays: the features and labels, and sample weights.
      epochs: the number of epochs.
      callbacks: takes a directory of the task; returns the user's callbacks.
      options: other arguments of `fit`.
      validates: whether the data is also the validation data.
      change: takes the trained model and changes it for a second training, in another directory;
        None for one training.
      loads: whether the model is one that `files` has trained in one process.
      examples: takes the arrays and a directory; returns the dataset of all examples.
      batches: takes the examples of a shard and the batch size; returns the dataset in batches.
      atol: the difference to one process that rounding may make.
    """

    build: Callable[..., Any]
    arrays: tuple[Any, ...] = (POINTS, SUMS)
    epochs: int = 2
    callbacks: Callable[[Path], Sequence[Any]] = field(default=lambda _: [])
    options: dict[str, Any] = field(default_factory=dict)
    validates: bool = False
    change: Callable[[Any], None] | None = None
    loads: bool = False
    examples: Callable[[Any, Path], tf.data.Dataset] = field(
        default=lambda arrays, _: tf.data.Dataset.from_tensor_slices(arrays)
    )
    batches: Callable[[tf.data.Dataset, int], tf.data.Dataset] = field(
        default=lambda shard, size: shard.batch(size)
    )
    atol: float = 1e-6


def dense(
    optimizer: Any = None,
    loss: Any = "mse",
    units: int = 1,
    *,
    activation: str | None = None,
    **options: Any,
) -> Any:
    """A model of two layers."""
    inputs = tf.keras.Input([4])
    hidden = layers.Dense(3, "tanh")(inputs)
    model = tf.keras.Model(inputs, layers.Dense(units, activation)(hidden))
    model.compile(optimizer or optimizers.SGD(0.1), loss, **options)
    return model


def adapted(layer: Any, data: Any) -> Any:
    """A layer that has learned from data."""
    layer.adapt(data)
    return layer


def of_words() -> Any:
    """A model with the layers that turn a word into the row of an embedding."""
    inputs = tf.keras.Input([1], dtype=tf.string)
    numbered = [
        (layers.StringLookup(vocabulary=list(WORDS)), 6),
        (adapted(layers.StringLookup(), WORDS), 6),
        (adapted(layers.TextVectorization(output_sequence_length=2), WORDS), 7),
        (layers.Hashing(5), 5),
    ]
    rows = [layers.Flatten()(layers.Embedding(size, 4)(each(inputs))) for each, size in numbered]
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(rows)))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def of_numbers() -> Any:
    """A model with the layers that scale and sort numbers."""
    inputs = tf.keras.Input([4])
    encoded = layers.CategoryEncoding(4, output_mode="multi_hot")
    sorted_ = encoded(layers.Discretization([-0.5, 0.0, 0.5])(inputs))
    scaled = adapted(layers.Normalization(), POINTS)(inputs)
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([sorted_, scaled])))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def loss_scaled(optimizer: Any, initial: float = 2.0**15) -> Any:
    """An optimizer that scales the loss, as for float16."""
    wrappers = optimizers if hasattr(optimizers, "LossScaleOptimizer") else tf.keras.mixed_precision
    return wrappers.LossScaleOptimizer(optimizer, initial_scale=initial)


def mixed(policy: str, scaled: Callable[[Any], Any] = lambda optimizer: optimizer) -> Any:
    """A model whose hidden layer computes in 16 bits, exactly for `NEARLY_WHOLE`.

    How 16 bits round a sum depends on the processor and on the size of the batch. Here each sum is
    exact in any order: the rounded features are whole, so are the gradients (the signs of the
    errors times features, because the loss has the weight of a global batch), and the weights are
    multiples of the learning rate.
    """
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        inputs = tf.keras.Input([4])
        hidden = layers.Dense(4, "relu", kernel_initializer="identity")(inputs)
        # Its training would lengthen the weights by some bits in each step.
        last = layers.Dense(1, dtype="float32", kernel_initializer="ones", trainable=False)
        model = tf.keras.Model(inputs, last(hidden))
        model.compile(scaled(optimizers.SGD(1 / 16)), "mae", loss_weights=[float(GLOBAL_BATCH)])
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    return model


def with_penalty() -> Any:
    """A model with a layer that adds a loss."""
    inputs = tf.keras.Input([4])
    model = tf.keras.Model(inputs, layers.Dense(1)(Penalty()(inputs)))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def two_inputs_and_outputs() -> Any:
    """A model with named inputs and outputs, a loss and a weight for each, and a frozen layer."""
    first, second = tf.keras.Input([4], name="first"), tf.keras.Input([4], name="second")
    frozen = layers.Dense(3)
    frozen.trainable = False
    hidden = layers.Concatenate()([layers.Dense(3)(first), frozen(second)])
    outputs = {
        "total": layers.Dense(1, name="total")(hidden),
        "kind": layers.Dense(3, name="kind")(hidden),
    }
    model = tf.keras.Model({"first": first, "second": second}, outputs)
    model.compile(
        optimizers.Adam(0.05),
        {
            "total": "mse",
            "kind": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"total": 0.5, "kind": 1.0},
    )
    return model


class Penalty(tf.keras.layers.Layer):
    """Adds a loss of its own, and a metric where layers have them."""

    def call(self, inputs: Any) -> Any:
        penalty = 0.1 * tf.reduce_mean(inputs**2)
        self.add_loss(penalty)
        if not IS_KERAS_3:
            self.add_metric(penalty, name="penalty")
        return inputs


class SumOfTargets(tf.keras.metrics.Metric):
    """A metric that assigns the sum of its state and two other values."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.state = self.add_weight(name="state", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        targets = tf.reduce_sum(y_true)
        self.state.assign(tf.convert_to_tensor(self.state) + 2.0 * targets - targets)

    def result(self) -> Any:
        return tf.convert_to_tensor(self.state)


def of_classes() -> Any:
    """A model for three classes."""
    return dense(
        loss="sparse_categorical_crossentropy",
        units=3,
        activation="softmax",
        metrics=[tf.keras.metrics.MeanIoU(3, sparse_y_pred=False, name="mean_iou")],
    )


def of_sparse() -> Any:
    """A model whose input is a sparse tensor."""
    inputs = tf.keras.Input([4], sparse=True)
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Dense(3)(inputs)))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def of_ragged() -> Any:
    """A model whose input is a ragged tensor."""
    inputs = tf.keras.Input([None], ragged=True, dtype="int64")
    hidden = layers.Embedding(5, 4)(inputs)
    model = tf.keras.Model(inputs, layers.Dense(1)(Means()(hidden)))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


class Means(tf.keras.layers.Layer):
    """The means of ragged rows."""

    def call(self, inputs: Any) -> Any:
        return tf.reduce_mean(inputs, 1)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape[0], shape[2]


def unfreeze(model: Any) -> None:
    """The second phase of fine-tuning: all layers, and a new optimizer."""
    model.trainable = True
    model.compile(optimizers.Adam(0.01), "mae")


def synchronized() -> Any:
    """A model with statistics of the batches of all replicas."""
    inputs = tf.keras.Input([4])
    normalization = layers.BatchNormalization(synchronized=True, momentum=0.5)
    model = tf.keras.Model(inputs, layers.Dense(1)(normalization(layers.Dense(3)(inputs))))
    model.compile(optimizers.SGD(0.05), "mse")
    return model


def frozen() -> Any:
    """The first phase of fine-tuning: the first layer keeps its weights."""
    model = dense(optimizers.Adam(0.1))
    model.layers[1].trainable = False
    model.compile(optimizers.Adam(0.1), "mse")
    return model


def loaded(path: Path) -> Any:
    """A saved model, compiled again."""
    model = tf.keras.models.load_model(path / "model.keras" if IS_KERAS_3 else path)
    model.compile(optimizers.Adam(0.05), "mae")
    return model


def generated(arrays: Any, _: Path) -> tf.data.Dataset:
    """The same examples from a Python generator, with an unknown cardinality."""
    specs = tuple(tf.TensorSpec(each.shape[1:], each.dtype) for each in arrays)
    return tf.data.Dataset.from_generator(lambda: zip(*arrays, strict=True), output_signature=specs)


def interleaved(arrays: Any, path: Path) -> tf.data.Dataset:
    """The same examples, with an unknown cardinality, on a disk and in memory after an epoch."""
    examples = tf.data.Dataset.from_tensor_slices(arrays)
    mixed = examples.interleave(lambda *each: tf.data.Dataset.from_tensors(each))
    return mixed.snapshot(tempfile.mkdtemp(dir=path)).cache()


def sparse(shard: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """The positive features, as sparse tensors."""
    return shard.map(lambda x, y: (tf.sparse.from_dense(tf.nn.relu(x)), y)).batch(size)


def ragged(shard: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Rows of different lengths, as ragged tensors."""
    return shard.map(lambda row, y: (tf.boolean_mask(row, row >= 0), y)).ragged_batch(size)


def optimizer() -> Any:
    """An optimizer with most of what Keras's optimizers can do."""
    return optimizers.AdamW(
        optimizers.schedules.CosineDecay(0.1, 8),
        weight_decay=0.01,
        global_clipnorm=0.1,
        use_ema=True,
        ema_momentum=0.5,
    )


def shuffled(arrays: Any, path: Path) -> tf.data.Dataset:
    """The examples, in another order in each epoch."""
    return tf.data.Dataset.from_tensor_slices(arrays).shuffle(EXAMPLES, seed=5)


def files(path: Path) -> list[Any]:
    """The callbacks that write files, and those that change the learning rate or do nothing."""
    return [
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
        callbacks.ModelCheckpoint(str(path / "own.weights.h5"), save_weights_only=True),
        callbacks.CSVLogger(str(path / "log.csv")),
        callbacks.TensorBoard(str(path / "board")),
        callbacks.TerminateOnNaN(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    ]


CASES: dict[str, Case] = {
    "words": Case(of_words, (WORDS[DAYS][:, None], DAYS[:, None].astype("float32"))),
    "numbers": Case(of_numbers),
    "features": Case(of_features, (FEATURES, SUMS)),
    "dynamic": Case(of_dynamic_ids, (DAYS[:, None] * -(10**12), SUMS)),
    "ranking": Case(
        of_ranking, (POINTS, {"click": CLICKS, "items": CLICKS[:, :1]}), validates=True
    ),
    "early_stopping": Case(
        dense,
        epochs=4,
        # Only the first task stops by itself.
        callbacks=lambda path: [
            callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch)),
            callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True),
        ][: 1 if path.suffix == ".worker-1" else 2],
    ),
    "files": Case(
        lambda: dense(optimizers.Adam(0.1)),
        epochs=3,
        callbacks=files,
        validates=True,
        examples=shuffled,
    ),
    "evaluation": Case(
        lambda: dense(
            loss="binary_crossentropy",
            activation="sigmoid",
            metrics=[
                tf.keras.metrics.AUC(name="auc"),
                tf.keras.metrics.F1Score(threshold=0.5, name="f1"),
                tf.keras.metrics.BinaryIoU([0, 1], name="iou"),
                SumOfTargets(),
            ],
            weighted_metrics=["mae"],
        ),
        (POINTS, (SUMS > 0).astype("float32"), WEIGHTS),
        epochs=3,
        options={"validation_freq": 2},
        validates=True,
    ),
    "several_inputs_and_outputs": Case(
        two_inputs_and_outputs,
        ({"first": POINTS, "second": POINTS[::-1].copy()}, {"total": SUMS, "kind": CLASSES}),
        validates=True,
    ),
    "add_loss": Case(with_penalty),
    "classes": Case(
        of_classes,
        (POINTS, CLASSES),
        options={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
        validates=True,
    ),
    "sparse": Case(of_sparse, examples=generated, batches=sparse),
    "ragged": Case(of_ragged, (ROWS, SUMS), examples=interleaved, batches=ragged),
    "bfloat16": Case(lambda: mixed("mixed_bfloat16"), (NEARLY_WHOLE, WHOLE_SUMS)),
    # All replicas skip the step in which the gradients of one of them are infinite.
    "float16": Case(
        lambda: mixed("mixed_float16", lambda optimizer: loss_scaled(optimizer, 256.0)),
        (OVERFLOWING, WHOLE_SUMS),
    ),
    "backup": Case(
        dense,
        epochs=3,
        callbacks=lambda path: [callbacks.BackupAndRestore(str(path / "backup"))],
        options={"initial_epoch": 1},
    ),
    # The variance of all batches is a difference of two sums.
    "synchronized": Case(synchronized, (SCALED, SUMS), atol=1e-5),
    "two_phases": Case(frozen, change=unfreeze),
    "loaded": Case(loaded, loads=True),
}
if IS_KERAS_3:
    CASES["two_optimizers"] = Case(two_optimizers, (DAYS[:, None], DAYS[:, None].astype("float32")))


def compiled(case: str, saved: Path) -> Any:
    """The model of a case, with the same weights in each process.

    Args:
      case: the name of the case.
      saved: the directory of a saved model.
    """
    tf.keras.utils.set_random_seed(1)
    return CASES[case].build(saved) if CASES[case].loads else CASES[case].build()


def dataset(case: str, path: Path, context: Any, batch_size: int) -> tf.data.Dataset:
    """A shard of the examples of a case; `path` is a directory for files of the task."""
    examples = CASES[case].examples(CASES[case].arrays, path)
    shard = examples.shard(context.num_input_pipelines, context.input_pipeline_id)
    return CASES[case].batches(shard, batch_size)
