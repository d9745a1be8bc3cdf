"""Runs Keras 3 features with parameter servers, such as metrics and custom train steps.

Example i has the feature i / EXAMPLES; every third example has the label 1. The program writes its
results to `--result`, as JSON.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags

tfdist.define_flags()
flags.DEFINE_string("result", None, "File for the results.", required=True)
FLAGS = flags.FLAGS

EXAMPLES = 90


def data(
    repeats: bool = False, batch_size: int = 1
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    features = np.arange(EXAMPLES, dtype="float32")[:, None] / EXAMPLES
    labels = (np.arange(EXAMPLES) % 3 == 0).astype("float32")[:, None]

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        dataset = dataset.batch(batch_size)
        return dataset.repeat() if repeats else dataset

    return make


def metrics() -> list[Any]:
    """Metrics that cover all the ways in which Keras accumulates state."""
    return [
        tf.keras.metrics.Precision(name="precision"),
        tf.keras.metrics.AUC(name="auc", num_thresholds=20),
        tf.keras.metrics.R2Score(name="r2"),
        tf.keras.metrics.F1Score(name="f1", threshold=0.5),
        tf.keras.metrics.BinaryIoU(name="iou"),
        tf.keras.metrics.BinaryAccuracy(name="accuracy"),
    ]


class Count(tf.keras.metrics.Metric):
    """Counts the examples."""

    def __init__(self) -> None:
        super().__init__(name="count")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:
        # The documentation of Keras writes it this way.
        self.total.assign(self.total + tf.cast(tf.shape(labels)[0], tf.float32))

    def result(self) -> Any:
        return tf.identity(self.total)


class CustomStep(tf.keras.Model):
    """Returns a step result that is not a metric, and has a random layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = tf.keras.layers.Dropout(0.5)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(self.dropout(inputs, training=training))

    def train_step(self, batch: Any) -> dict[str, Any]:
        return {"largest": tf.reduce_max(batch[0]), **super().train_step(batch)}


class Batches(tf.keras.callbacks.Callback):
    """Records the names in the logs that Keras passes to the callbacks of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[frozenset[str]] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.names.add(frozenset(logs))


class StopsInEpoch2(tf.keras.callbacks.Callback):
    """Stops the training after the first execution of the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self._epoch == 1


def linear(*metrics: Any, **options: Any) -> Any:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(tf.keras.optimizers.SGD(0.0), "mse", metrics=list(metrics), **options)
    return model


def exact_metrics(job: tfdist.Job) -> dict[str, Any]:
    with job.scope():
        model = linear(Count(), *metrics())
    batches = Batches()
    fit = model.fit(
        job.dataset(data()),
        epochs=3,
        validation_data=job.eval_dataset(data()),
        verbose=0,
        callbacks=[batches],
    )
    expected = {}
    # The weights do not change, so every epoch has the same metrics as a single process.
    (all_examples,) = data(batch_size=EXAMPLES)(tf.distribute.InputContext())
    for metric in metrics():
        metric.update_state(all_examples[1], all_examples[0])
        expected[metric.name] = np.array(metric.result()).tolist()
    return {
        "history": {name: np.array(values).tolist() for name, values in fit.history.items()},
        "evaluated": {
            name: np.array(value).tolist()
            for name, value in model.evaluate(
                job.eval_dataset(data()), return_dict=True, verbose=0
            ).items()
        },
        "expected": expected,
        "updates": int(model.optimizer.iterations.numpy()),
        "names": [sorted(names) for names in batches.names],
        "predicted": model.predict(all_examples[0].numpy(), verbose=0)[:, 0].tolist(),
        "features": all_examples[0].numpy()[:, 0].tolist(),
    }


def step_limits(job: tfdist.Job) -> dict[str, Any]:
    with job.scope():
        model = linear(Count(), steps_per_execution=3)
    fit = model.fit(
        job.dataset(data(repeats=True)),
        epochs=3,
        steps_per_epoch=7,
        validation_data=job.eval_dataset(data(repeats=True)),
        validation_steps=5,
        verbose=0,
    )
    updates = [int(model.optimizer.iterations.numpy())]
    model.fit(job.dataset(data()), epochs=3, verbose=0, callbacks=[StopsInEpoch2()])
    updates.append(int(model.optimizer.iterations.numpy()))
    return {"history": fit.history, "updates": updates}


def custom_steps(job: tfdist.Job) -> dict[str, Any]:
    with job.scope():
        model = CustomStep()
        model.compile(tf.keras.optimizers.Adam(0.01), "mse")
    fit = model.fit(job.dataset(data(batch_size=9)), epochs=2, verbose=0)
    return {"history": {name: np.array(values).tolist() for name, values in fit.history.items()}}


def refusals(job: tfdist.Job) -> dict[str, str]:
    def compiled(accumulate: int | None = None, **options: Any) -> Any:
        with job.scope():
            model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
            optimizer = tf.keras.optimizers.SGD(gradient_accumulation_steps=accumulate)
            model.compile(optimizer, "mse", **options)
        return model

    def fit(model: Any) -> None:
        model.fit(job.dataset(data()), verbose=0)

    cases: dict[str, Callable[[], None]] = {
        "jit_compile": lambda: fit(compiled(jit_compile=True)),
        "run_eagerly": lambda: fit(compiled(run_eagerly=True)),
        "gradient_accumulation_steps": lambda: fit(compiled(accumulate=2)),
        "data": lambda: compiled().fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0),
        "predict": lambda: compiled().predict(job.eval_dataset(data())),
    }
    refused = {}
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            refused[name] = f"{type(error).__name__}: {error}"
    return refused


def main(_: list[str]) -> None:
    job = tfdist.init()
    if job.serves:
        return job.serve()
    results: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for case in (exact_metrics, step_limits, custom_steps, refusals):
            results[case.__name__] = case(job)
    results["warnings"] = [str(warning.message) for warning in warned]
    Path(FLAGS.result).write_text(json.dumps(results))


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
