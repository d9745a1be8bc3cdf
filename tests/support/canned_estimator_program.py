"""Trains Estimators with sparse gradients one after the other; tests run it as a cluster.

The chief writes the weights of each to `weights.npz` in its output directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tfdist.estimator  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags

import tfdist

KINDS = ("embedding", "linear", "wide_and_deep")
flags.DEFINE_multi_enum("kind", KINDS, KINDS, "The Estimators.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
FLAGS = flags.FLAGS

GLOBAL_BATCH, EXAMPLES, ROWS, STEPS = 36, 360, 30, 40
WORDS = np.array(["mon", "tue", "wed", "thu", "fri"])


def arrays() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The features and the labels of all examples."""
    random = np.random.default_rng(0)
    day, hour = random.integers(0, 5, EXAMPLES), random.normal(size=EXAMPLES).astype("float32")
    row = random.integers(0, ROWS, EXAMPLES)
    label = ((day >= 3) ^ (hour > 0.5)).astype("int32")
    return {"day": WORDS[day], "hour": hour, "row": row}, label


def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
    """Two tables: each example reads a row of the first, the second is read without duplicates."""
    v1 = tf.compat.v1
    first = v1.get_variable("first", [ROWS, 2], initializer=v1.zeros_initializer())
    # Too large to be sent with the dense gradients.
    second = v1.get_variable("second", [10_000, 2], initializer=v1.zeros_initializer())
    rows, places = tf.unique(features["row"])
    read = tf.nn.embedding_lookup(first, features["row"])
    read += tf.gather(tf.nn.embedding_lookup(second, rows), places)
    loss = tf.reduce_mean((tf.reduce_sum(read, 1) - tf.cast(labels, tf.float32)) ** 2)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    optimizer = config.job.wrap_optimizer(v1.train.GradientDescentOptimizer(1.0))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_of(job: Any, kind: str, output_dir: str) -> tuple[Any, Any]:
    """The Estimator and its exporter."""
    column, legacy = tf.feature_column, tf.keras.optimizers.legacy
    config = tfdist.estimator.RunConfig(
        job, output_dir, save_checkpoints_steps=20, tf_random_seed=1
    )
    day = column.categorical_column_with_vocabulary_list("day", list(WORDS))
    hour = column.numeric_column("hour")
    bucket = column.bucketized_column(hour, [-1.0, 0.0, 0.5, 1.0])
    wide = [day, bucket, column.crossed_column(["day", bucket], 64)]
    deep = [column.embedding_column(day, 3), hour]
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        column.make_parse_example_spec([day, hour])
    )

    wrap = job.wrap_optimizer
    if kind == "embedding":
        return tf.estimator.Estimator(model_fn, config=config), None
    if kind == "linear":
        linear = tf.estimator.LinearClassifier(
            wide, optimizer=wrap(legacy.Ftrl(0.2)), config=config
        )
        return linear, tf.estimator.FinalExporter("exported", receiver)
    both = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[8],
        linear_optimizer=wrap(legacy.Ftrl(0.2)),
        dnn_optimizer=wrap(legacy.Adagrad(0.1)),
        config=config,
    )
    return both, tf.estimator.BestExporter("exported", receiver)


@tfdist.estimator.main
def main(job: Any) -> None:
    """Trains, evaluates and exports each Estimator."""
    for kind in FLAGS.kind:
        run(job, kind, str(Path(FLAGS.output_dir) / kind))


def run(job: Any, kind: str, output_dir: str) -> None:
    """Trains, evaluates and exports one Estimator."""
    estimator, exporter = estimator_of(job, kind, output_dir)

    def train(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(arrays())
        shards, shard = input_context.num_input_pipelines, input_context.input_pipeline_id
        return dataset.shard(shards, shard).repeat().batch(GLOBAL_BATCH // job.num_replicas)

    tfdist.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train, max_steps=STEPS),
        tf.estimator.EvalSpec(
            lambda: tf.data.Dataset.from_tensor_slices(arrays()).batch(64),
            steps=None,
            exporters=exporter,
            throttle_secs=0,
            start_delay_secs=0,
        ),
    )
    if job.is_chief:
        names = [name for name in estimator.get_variable_names() if "global_step" not in name]
        values = {name: estimator.get_variable_value(name) for name in names}
        np.savez(
            Path(output_dir) / "weights.npz",
            **{name: value for name, value in values.items() if value.dtype.kind == "f"},
        )


if __name__ == "__main__":
    tfdist.estimator.run(main)
