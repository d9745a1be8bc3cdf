"""The same training with tfdist: one script for every strategy."""

from __future__ import annotations

import tfdist  # isort: skip  (before TensorFlow: it sets variables that TensorFlow reads when imported)

import os
from pathlib import Path

import tensorflow as tf
from absl import app, flags

from scripts.benchmarks import profiles
from scripts.benchmarks.training import FLAGS, EpochMarks, MarksCallback, compiled, examples

tfdist.define_flags()
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_bool("repeat", False, "Repeat the data forever, and set the steps per epoch.")
flags.DEFINE_bool("fit", False, "Train with `job.fit`.")
flags.DEFINE_integer("save_steps", 0, "Save a checkpoint after so many steps; 0 for no saves.")
flags.DEFINE_string("pid_dir", None, "Directory for a file with the process ID of every task.")
flags.DEFINE_string("profile_dir", None, "Directory for the profile of an epoch of every task.")


@tfdist.exit_on_usage_error()
def main(_: list[str]) -> None:
    job = tfdist.init()
    if FLAGS.pid_dir:
        Path(FLAGS.pid_dir, str(job.task)).write_text(str(os.getpid()))
    if FLAGS.profile_dir:
        profiles.follow(FLAGS.profile_dir, str(job.task))
    if job.serves:
        return job.serve()

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        shards = context.num_input_pipelines
        dataset = examples(FLAGS.steps * FLAGS.batch_size * shards)
        dataset = dataset.shard(shards, context.input_pipeline_id).cache().shuffle(1000)
        if FLAGS.repeat:
            dataset = dataset.repeat()
        return dataset.batch(FLAGS.batch_size).prefetch(2)

    if FLAGS.fit:
        # A callback that acts on steps keeps single ones.
        marks = MarksCallback if FLAGS.steps_per_execution else EpochMarks
        job.fit(
            lambda: compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9)),
            train_input,
            epochs=FLAGS.epochs,
            output_dir=FLAGS.output_dir,
            callbacks=[marks(writes=job.is_chief)],
            verbose=2 if job.is_chief else 0,
        )
        return
    count = FLAGS.steps * FLAGS.batch_size * job.input_context.num_input_pipelines
    with job.scope():
        model = compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    model.fit(
        job.dataset(train_input),
        epochs=FLAGS.epochs,
        steps_per_epoch=job.steps_per_epoch(count, FLAGS.batch_size) if FLAGS.repeat else None,
        callbacks=[
            MarksCallback(writes=job.is_chief),
            *([profiles.Epoch(FLAGS.profile_dir, 2)] if FLAGS.profile_dir and job.is_chief else []),
            *job.callbacks(FLAGS.output_dir, save_steps=FLAGS.save_steps or None),
        ],
        verbose=2 if job.is_chief else 0,
    )


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
