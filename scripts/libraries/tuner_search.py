"""KerasTuner: each trial is a training of its own, in a directory of its own."""

from __future__ import annotations

import tfdist  # isort: skip

import keras_tuner
import numpy as np
import tensorflow as tf
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    x = np.random.default_rng(1).normal(size=[512, 8]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(batch_size)


def build_model(parameters: keras_tuner.HyperParameters) -> tf.keras.Model:
    dense = tf.keras.layers.Dense
    units = parameters.Int("units", 4, 64)
    model = tf.keras.Sequential([tf.keras.Input([8]), dense(units, "relu"), dense(1)])
    model.compile(tf.keras.optimizers.SGD(parameters.Float("rate", 0.01, 0.05)), "mse")
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    batch_size = 32 // job.num_replicas

    class Tuner(keras_tuner.RandomSearch):
        def run_trial(self, trial: keras_tuner.engine.trial.Trial) -> float:
            tf.keras.utils.set_random_seed(1)
            history = job.fit(
                lambda: build_model(trial.hyperparameters),
                lambda: data(batch_size),
                epochs=2,
                output_dir=f"{OUTPUT_DIR.value}/trial-{trial.trial_id}",
            )
            return float(history.history["loss"][-1])

    # Each task has its own copy of the search. The losses are the same in all of them.
    directory = f"{OUTPUT_DIR.value}/search-{job.task.type}-{job.task.index}"
    objective = keras_tuner.Objective("loss", "min")
    tuner = Tuner(objective=objective, max_trials=2, seed=1, directory=directory)
    tuner.search()
    print("best:", tuner.get_best_hyperparameters()[0].values)


if __name__ == "__main__":
    tfdist.run(main)
