"""Trains until one task stops, and then does in the chief alone what scripts do after `fit`.

Where the tasks must go on together, the chief trains the model again without tfdist.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags

from tests.support.replaced_methods import still_replaced

OUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)

_random = np.random.default_rng(0)
POINTS = _random.normal(size=[90, 6]).astype("float32")
SIGNS = (POINTS.sum(1, keepdims=True) > 0).astype("float32")


@tf.keras.utils.register_keras_serializable()
class Activity(tf.keras.layers.Layer):
    """Changes nothing; has a metric."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.activity = tf.keras.metrics.Mean(name="activity")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.activity.update_state(inputs)
        return inputs


def build_model() -> Any:
    """A model whose moving statistics differ between tasks until they are averaged."""
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input([6]),
            layers.Dense(8, "tanh"),
            Activity(),
            layers.BatchNormalization(momentum=0.5),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(
        "adam", "binary_crossentropy", metrics=["accuracy", tf.keras.metrics.AUC(name="auc")]
    )
    return model


def examples(context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices((POINTS, SIGNS))
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8)


class PredictsInChief(tf.keras.callbacks.Callback):
    """Predicts after each epoch, in the chief alone."""

    def __init__(self, job: tfdist.Job) -> None:
        super().__init__()
        self._is_chief = job.is_chief

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Keras 2 calls callbacks in the scope of the strategy, where all tasks must predict.
        if self._is_chief and not tf.distribute.has_strategy():
            assert len(self.model.predict(POINTS, verbose=0)) == len(POINTS)


class StopsAlone(tf.keras.callbacks.Callback):
    """Stops after the third step of the second epoch, by what its own task sees."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if (self._epoch, batch) == (1, 2):
            self.model.stop_training = True


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(
        build_model,
        examples,
        epochs=4,
        output_dir=OUT.value,
        callbacks=[PredictsInChief(job)] if job.is_chief else [StopsAlone()],
        verbose=0,
    )
    model, directory = history.model, Path(OUT.value)
    left = still_replaced()
    of_all = job.evaluate(model, examples)
    left += still_replaced()
    if not job.is_chief:
        return
    model.save(directory / "own.keras")
    exported = directory / "saved_model"
    archive = exported / "model.keras"
    predictions = {
        "arrays": model.predict(POINTS, verbose=0),
        "dataset": model.predict(tf.data.Dataset.from_tensor_slices(POINTS).batch(16), verbose=0),
        "saved": tf.keras.models.load_model(directory / "own.keras").predict(POINTS, verbose=0),
        "exported": tf.keras.models.load_model(archive if archive.exists() else exported).predict(
            POINTS, verbose=0
        ),
    }
    # TensorFlow's strategies for one process refuse an update of a metric outside of their steps.
    if job.name not in ("mirrored", "central_storage"):
        predictions["call"] = model(POINTS).numpy()
    alone = of_all
    if job.name != "parameter_server":  # Its Keras 2 evaluates only data that the workers read.
        alone = model.evaluate(POINTS, SIGNS, batch_size=16, verbose=0, return_dict=True)
        if len(job.cluster.training_tasks) < 2:
            again = model.fit(POINTS, SIGNS, batch_size=16, epochs=2, verbose=0)
            assert again.history["loss"][-1] < alone["loss"]
    np.savez(directory / "predictions.npz", **predictions)
    (directory / "metrics.json").write_text(json.dumps({"all": of_all, "alone": alone}))
    (directory / "left.json").write_text(json.dumps(left))


if __name__ == "__main__":
    tfdist.run(main)
