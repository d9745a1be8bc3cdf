"""Trains a small classifier once for each case, and writes the results to `--result_dir`.

It runs with Keras 2 and Keras 3, as a single process and as a task of a job. A case must give the
same weights everywhere. An epoch has 24 examples, in two steps with a global batch of 12.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from tests.support.keras3_cases import CASES, CLASSES, EPOCHS, EXAMPLES, GLOBAL_BATCH, ROWS, Case

tfdist.define_flags()
flags.DEFINE_list("cases", None, "The cases; default: all.")
flags.DEFINE_string("result_dir", None, "Directory for each task's results.", required=True)
flags.DEFINE_integer("replicas", 1, "Replicas per worker of multi_worker_mirrored.")
FLAGS = flags.FLAGS


def arrays(case: Case) -> tuple[Any, np.ndarray, np.ndarray]:
    """The features, classes and sample weights of a case."""
    random = np.random.default_rng(3)
    features = random.normal(size=(EXAMPLES, 4)).astype("float32")[: case.examples]
    classes = (features @ random.normal(size=(4, CLASSES))).argmax(axis=1).astype("int64")
    if case.embeds:
        features = np.abs(3 * features).astype("int32") % ROWS
    weights = np.linspace(0.5, 1.5, EXAMPLES).astype("float32")[: case.examples]
    if case.overflows:
        weights[0] = 1e30
    return ({"features": features} if case.named_inputs else features), classes, weights


def mean_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(
        tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )


def build(job: tfdist.Job, case: Case) -> tf.keras.Model:
    inputs = tf.keras.Input([4], name="features", dtype="int32" if case.embeds else "float32")
    if case.embeds:
        rows = tf.keras.layers.Embedding(ROWS, 8)(inputs)
        hidden = tf.keras.layers.GlobalAveragePooling1D()(rows)
    else:
        hidden = tf.keras.layers.Dense(8, activation="tanh")(inputs)
    if case.batch_norm:
        hidden = tf.keras.layers.BatchNormalization(momentum=0.9)(hidden)
    outputs = tf.keras.layers.Dense(CLASSES)(hidden)
    model = tf.keras.Model({"features": inputs} if case.named_inputs else inputs, outputs)
    # Horovod ranks start with different weights, because rank 0 must broadcast its own.
    random = np.random.default_rng(5 + (job.task.index if job.name == "horovod" else 0))
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.Dense | tf.keras.layers.Embedding):
            shapes = [weight.shape for weight in layer.get_weights()]
            layer.set_weights([random.normal(size=shape, scale=0.5) for shape in shapes])
    rate: Any = 0.05
    if case.warms_up:
        rate = tf.keras.optimizers.schedules.CosineDecay(
            0.01, decay_steps=3, warmup_target=rate, warmup_steps=3
        )
    optimizer = getattr(tf.keras.optimizers, case.optimizer)(rate, **dict(case.options))
    if case.loss_scale is not None:
        optimizer = tf.keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=case.loss_scale, dynamic_growth_steps=2
        )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=job.wrap_optimizer(optimizer),
        loss=mean_loss if case.scalar_loss else loss,
        metrics=["accuracy"],
    )
    return model


class Losses(tf.keras.callbacks.Callback):
    """Records the loss in the logs of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.of_steps: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.of_steps.append((logs or {})["loss"])


def make_replicas(count: int) -> None:
    """Gives a worker of multi_worker_mirrored `count` CPU devices, which act like GPUs."""
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    CollectiveAllReduceExtended._initialize_local_devices = lambda _, resolver, worker_device: (
        tuple(f"{worker_device}/device:CPU:{index}" for index in range(count)),
        "CPU",
    )


def train(job: tfdist.Job, name: str) -> dict[str, Any]:
    case = CASES[name]
    features, classes, weights = arrays(case)

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        elements = (features, classes, weights) if case.sample_weights else (features, classes)
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        dataset = dataset.batch(GLOBAL_BATCH // job.num_replicas)
        return dataset.repeat() if case.repeats else dataset

    def eval_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((features, classes))
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(20)

    with job.scope():
        model = build(job, case)
    options: dict[str, Any] = {"x": features, "y": classes, "batch_size": GLOBAL_BATCH}
    if not case.arrays:
        options = {"x": job.dataset(train_input)}
    if case.evaluates:
        options["validation_data"] = job.eval_dataset(eval_input)
    losses = Losses()
    history = model.fit(
        **options,
        shuffle=False,
        epochs=EPOCHS,
        steps_per_epoch=2 if case.repeats else None,
        callbacks=[*job.callbacks(str(Path(FLAGS.result_dir) / "output" / name)), losses],
        verbose=0,
    )
    results = {
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "trained": np.concatenate([v.numpy().ravel() for v in model.trainable_variables]),
        "steps": int(model.optimizer.iterations.numpy()),
        "losses": losses.of_steps,
        "loss": history.history["loss"],
        "accuracy": history.history["accuracy"],
    }
    if case.evaluates:
        evaluated = job.evaluate(model, eval_input)
        results |= {
            "val_loss": history.history["val_loss"],
            "evaluated": [evaluated["loss"], evaluated["accuracy"]],
            "full_batch_loss": mean_loss(classes, model(features, training=False)).numpy(),
            # The last batch is smaller, and the replicas get different numbers of its examples.
            "predicted": model.predict(features, batch_size=10, verbose=0),
        }
    return results


def main(_: list[str]) -> None:
    if FLAGS.replicas > 1:
        make_replicas(FLAGS.replicas)
    job = tfdist.init()
    if job.serves:
        return job.serve()
    results = {
        f"{name}/{key}": value
        for name in FLAGS.cases or CASES
        for key, value in train(job, name).items()
    }
    result = Path(FLAGS.result_dir) / f"{job.task.type}-{job.task.index}.npz"
    result.parent.mkdir(parents=True, exist_ok=True)
    np.savez(result, **results)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
