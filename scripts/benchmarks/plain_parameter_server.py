"""ParameterServerStrategy with TF_CONFIG and a coordinator, as in TensorFlow's documentation."""

from __future__ import annotations

import tensorflow as tf
from absl import app

from scripts.benchmarks.training import FLAGS, MarksCallback, compiled, examples


def main(_: list[str]) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    workers = resolver.cluster_spec().num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(resolver)

    def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = examples(FLAGS.steps * FLAGS.batch_size * workers).cache().shuffle(1000)
        return dataset.repeat().batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        model = compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    model.fit(
        tf.keras.utils.experimental.DatasetCreator(dataset_fn),
        steps_per_epoch=FLAGS.steps * workers,
        epochs=FLAGS.epochs,
        callbacks=[MarksCallback()],
        verbose=2,
    )


if __name__ == "__main__":
    app.run(main)
