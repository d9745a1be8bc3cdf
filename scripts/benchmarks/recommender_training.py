"""The training of examples/recommender.py with marks, for measure_table.py."""

from __future__ import annotations

from examples import recommender  # isort: skip  (before TensorFlow: it imports tfdist)

import tensorflow as tf
from absl import flags

import tfdist
from scripts.benchmarks.marks import Marks

FLAGS = flags.FLAGS


class MarksCallback(tf.keras.callbacks.Callback):
    """Records the epochs, without the checkpoints: it comes before tfdist's callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = Marks()

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._marks.epoch_begins()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._marks.epoch_ends()

    def on_train_end(self, logs: object = None) -> None:
        self._marks.write()


@tfdist.main
def main(job: tfdist.Job) -> None:
    with job.scope():
        model = recommender.build_model(job)
    model.fit(
        job.dataset(recommender.train_input),
        epochs=FLAGS.epochs,
        callbacks=[MarksCallback(), *job.callbacks(FLAGS.output_dir)],
        verbose=2,
    )


if __name__ == "__main__":
    tfdist.run(main)
