"""A small convolutional network for 28x28 gray images, as a model function for tf.estimator.

config = tfdist.estimator.RunConfig(job, "/shared/run1")
params = {"learning_rate": job.scaled_lr(0.001)}
estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
tfdist.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
tfdist.estimator.export(estimator, serving_input_receiver_fn)
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.data.mnist import IMAGE_SIZE, NUM_CLASSES

MOMENTUM = 0.9
DROPOUT = 0.4


def logits(images: tf.Tensor, *, training: bool, dropout: float = DROPOUT) -> tf.Tensor:
    """Two 5x5 convolutions with 32 and 64 filters, each with 2x2 pooling, and 1,024 dense units.

    This is the network of TensorFlow's tutorial "Build a Convolutional Neural Network using
    Estimators" and of Horovod's MNIST examples. It has 3.3 million weights.

    Args:
      images: float32 [batch, 28, 28, 1], 0 to 1.
      training: whether to apply dropout after the dense layer.
      dropout: the fraction of the units to drop.

    Returns:
      float32 [batch, 10].
    """
    layers = tf.keras.layers
    network = tf.keras.Sequential(
        [
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(NUM_CLASSES),
        ]
    )
    return network(images, training=training)


def model_fn(
    features: tf.Tensor,
    labels: tf.Tensor | None,
    mode: str,
    params: dict[str, Any],
    config: tf.estimator.RunConfig,
) -> tf.estimator.EstimatorSpec:
    """Trains `logits` with SGD and momentum 0.9 on the mean cross entropy of a batch.

    Args:
      features: images, float32 [batch, 28, 28, 1], 0 to 1.
      labels: int32 or int64 [batch], 0 to 9; None for PREDICT.
      mode: a `tf.estimator.ModeKeys`.
      params: `learning_rate`, which is not scaled here (use `job.scaled_lr`); `dropout`, optional,
        default 0.4.
      config: a `tfdist.estimator.RunConfig`; its job wraps the optimizer.

    Returns:
      For TRAIN the loss and the update. For EVAL the loss and the metric `accuracy`. For PREDICT,
      and in the default serving signature, `classes`, int64 [batch], and `probabilities`,
      float32 [batch, 10].

    Raises:
      KeyError: TRAIN without a `learning_rate`.
    """
    training = mode == tf.estimator.ModeKeys.TRAIN
    scores = logits(features, training=training, dropout=params.get("dropout", DROPOUT))
    classes = tf.argmax(scores, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"classes": classes, "probabilities": tf.nn.softmax(scores)}
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: (
                    tf.estimator.export.PredictOutput(predictions)
                )
            },
        )
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, scores)
    if not training:
        accuracy = tf.compat.v1.metrics.accuracy(labels, classes)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    optimizer = config.job.wrap_optimizer(
        tf.compat.v1.train.MomentumOptimizer(params["learning_rate"], MOMENTUM)
    )
    step = tf.compat.v1.train.get_or_create_global_step()
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


def serving_input_receiver_fn() -> tf.estimator.export.TensorServingInputReceiver:
    """The input of the served model: `image`, float32 [batch, 28, 28, 1], 0 to 1."""
    images = tf.compat.v1.placeholder(tf.float32, [None, IMAGE_SIZE, IMAGE_SIZE, 1], name="image")
    return tf.estimator.export.TensorServingInputReceiver(images, {"image": images})
