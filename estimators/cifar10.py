"""The CIFAR-10 Estimator: its model function, its hyper-parameters and its input functions.

    params = HyperParameters(num_layers=20, batch_size=64, num_examples=40_000)
    config = tfdist.estimator.RunConfig(job, "/shared/run1")
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    estimator.train(train_input("/data/cifar10", batch_size=64), max_steps=1_000)

The training of TensorFlow's CIFAR-10 Estimator tutorial (2018), after He et al. 2015
(arXiv:1512.03385), section 4.2.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import tensorflow as tf

from estimators.resnet import cifar_resnet
from tfdist.data import cifar10
from tfdist.errors import UsageError
from tfdist.estimator import RunConfig
from tfdist.strategies.base import DatasetFunction

#: What the learning rate is multiplied by from each of the decay epochs on.
DECAYS = (0.1, 0.01, 0.002)

_KERAS_DATA_FORMATS = {
    "NHWC": "channels_last",
    "NCHW": "channels_first",
    "channels_last": "channels_last",
    "channels_first": "channels_first",
}


@dataclass(frozen=True)
class HyperParameters:
    """What the model function is told.

    Attributes:
      num_layers: layers of the ResNet, 6n + 2.
      batch_size: images of a replica's training batch.
      num_examples: images of the training split, over all tasks.
      learning_rate: before the first decay. It is used as it is, whatever the number of replicas,
        as in the tutorial; give `job.scaled_lr(rate)` for the linear scaling rule.
      decay_epochs: epochs of data, ascending, at which the rate becomes the next of `DECAYS` times
        `learning_rate`; at most three.
      momentum: of SGD.
      weight_decay: of half the squared norm of all trainable variables, the scales and offsets of
        the batch normalisation included.
      batch_norm_decay: momentum of the moving statistics.
      batch_norm_epsilon: added to the variance.
      data_format: `NHWC` or `channels_last`, `NCHW` or `channels_first`; None for NCHW where a GPU
        is used and NHWC elsewhere.
      variable_strategy: `CPU` or `GPU`, where a process by itself keeps the variables. With
        parameter servers they are there, with a `tf.distribute` strategy where it puts them.

    Raises:
      UsageError: a value that no model can be made with.
    """

    num_layers: int = 44
    batch_size: int = 128
    num_examples: int = 40_000
    learning_rate: float = 0.1
    decay_epochs: tuple[int, ...] = (82, 123, 300)
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_norm_decay: float = 0.997
    batch_norm_epsilon: float = 1e-5
    data_format: str | None = None
    variable_strategy: str = "CPU"

    def __post_init__(self) -> None:
        _check_one_of("--variable_strategy", self.variable_strategy, ("CPU", "GPU"))
        if self.data_format is not None:
            _check_one_of("--data_format", self.data_format, tuple(_KERAS_DATA_FORMATS))
        epochs = self.decay_epochs
        if len(epochs) > len(DECAYS) or list(epochs) != sorted(set(epochs)):
            raise UsageError(
                "--decay_epochs",
                received=",".join(map(str, epochs)),
                accepted=f"at most {len(DECAYS)} epochs, ascending",
                remedy="Name the epochs at which the learning rate falls.",
            )

    def learning_rate_at(self, step: tf.Tensor, global_batch_size: int) -> tf.Tensor:
        """The learning rate after `step` updates, each of `global_batch_size` examples.

        A job that goes on with another number of workers, or another batch size, has its earlier
        steps counted as if they had been of today's `global_batch_size` too.

        Args:
          step: the global step, an integer scalar.
          global_batch_size: examples behind one step. Asynchronous workers count a step for each
            of their own batches, so that it is one worker's batch there.

        Returns:
          A float32 scalar.
        """
        steps_per_epoch = self.num_examples / global_batch_size
        return tf.compat.v1.train.piecewise_constant(
            step,
            [int(epoch * steps_per_epoch) for epoch in self.decay_epochs],
            [self.learning_rate * decay for decay in (1.0, *DECAYS[: len(self.decay_epochs)])],
        )

    def keras_data_format(self) -> str:
        """`data_format` in Keras's words, for the devices that this process uses.

        Raises:
          UsageError: NCHW without a GPU.
        """
        has_gpu = bool(tf.config.get_visible_devices("GPU"))
        if self.data_format is None:
            return "channels_first" if has_gpu else "channels_last"
        keras_data_format = _KERAS_DATA_FORMATS[self.data_format]
        # On the CPU TensorFlow has no pooling in NCHW, and with oneDNN one with wrong results.
        if keras_data_format == "channels_first" and not has_gpu:
            raise UsageError(
                "--data_format",
                received=self.data_format,
                accepted="NHWC or channels_last on the CPU",
                remedy="Leave the flag out: each task then takes the format of its devices.",
            )
        return keras_data_format


def model_fn(
    features: tf.Tensor,
    labels: tf.Tensor | None,
    mode: str,
    params: HyperParameters,
    config: RunConfig,
) -> tf.estimator.EstimatorSpec:
    """The model function of `tf.estimator.Estimator`.

    Keras draws the initial weights, so that `tf.keras.utils.set_random_seed` makes them
    reproducible, and `tf_random_seed` of the configuration does not.

    Args:
      features: images, float32 [batch, 32, 32, 3] in 0..255.
      labels: int32 [batch], 0 to 9; None to predict.
      mode: a `tf.estimator.ModeKeys`.
      params: the hyper-parameters.
      config: its `job` wraps the optimizer and says how many examples are behind a step.

    Returns:
      The specification. Predictions, which are also the serving signature, are `classes`, int64
      [batch], and `probabilities`, float32 [batch, 10]; the metric is `accuracy`.

    Raises:
      UsageError: `num_layers` is not 6n + 2, or NCHW is asked for without a GPU.
    """
    training = mode == tf.estimator.ModeKeys.TRAIN
    with _variable_device(params, config):
        # The loss has the weight decay, of more than the kernels.
        model = cifar_resnet(
            params.num_layers,
            weight_decay=None,
            batch_norm_decay=params.batch_norm_decay,
            batch_norm_epsilon=params.batch_norm_epsilon,
            data_format=params.keras_data_format(),
        )
        logits = model(features, training=training)
    predictions = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)

    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    squares = tf.add_n([tf.nn.l2_loss(variable) for variable in model.trainable_variables])
    loss = tf.reduce_mean(cross_entropy) + params.weight_decay * squares
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.compat.v1.metrics.accuracy(labels, predictions["classes"])
        return tf.estimator.EstimatorSpec(
            mode, predictions, loss, eval_metric_ops={"accuracy": accuracy}
        )

    step = tf.compat.v1.train.get_or_create_global_step()
    rate = params.learning_rate_at(step, config.job.global_batch_size(params.batch_size))
    tf.compat.v1.summary.scalar("learning_rate", rate)
    optimizer = config.job.optimizer(tf.compat.v1.train.MomentumOptimizer(rate, params.momentum))
    # Estimators run nothing but the train_op, so that the moving statistics are to be part of it.
    updates = model.get_updates_for(features)
    train_op = tf.group(optimizer.minimize(loss, global_step=step), updates)
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


def train_input(
    data_dir: str | os.PathLike[str],
    *,
    batch_size: int,
    distort: bool = True,
    flip: bool = True,
    seed: int | None = None,
) -> DatasetFunction:
    """An input function of the training split: this task's shard, shuffled, without end.

    Its datasets, and what is raised when they are made, are those of `tfdist.data.cifar10.dataset`.

    Args:
      data_dir: the directory of the records.
      batch_size: images of a replica's batch.
      distort: crops at random.
      flip: mirrors at random; wrong for digits.
      seed: makes order and distortion reproducible.
    """

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        return cifar10.dataset(
            data_dir,
            "train",
            input_context,
            batch_size=batch_size,
            shuffle=True,
            distort=distort,
            flip=flip,
            seed=seed,
            repeat=True,
        )

    return input_fn


def eval_input(
    data_dir: str | os.PathLike[str], split: str = "eval", *, batch_size: int
) -> DatasetFunction:
    """An input function of a split, each example once, in order.

    Args:
      data_dir: the directory of the records.
      split: `train`, `validation` or `eval`.
      batch_size: images of a batch; the last may have fewer.
    """

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        return cifar10.dataset(data_dir, split, input_context, batch_size=batch_size)

    return input_fn


def serving_input_receiver_fn() -> tf.estimator.export.TensorServingInputReceiver:
    """The input of the served model: `images`, float32 [batch, 32, 32, 3] in 0..255."""
    images = tf.compat.v1.placeholder(tf.float32, [None, 32, 32, 3], name="images")
    return tf.estimator.export.TensorServingInputReceiver(images, {"images": images})


def _variable_device(params: HyperParameters, config: RunConfig) -> AbstractContextManager[None]:
    """The scope in which a process by itself places its variables."""
    if config.num_ps_replicas or tf.distribute.has_strategy():
        return nullcontext()
    return tf.compat.v1.device(
        tf.compat.v1.train.replica_device_setter(
            ps_tasks=1, ps_device=f"/{params.variable_strategy}:0", worker_device=""
        )
    )


def _check_one_of(field: str, received: str, accepted: tuple[str, ...]) -> None:
    if received not in accepted:
        raise UsageError(
            field, received=received, accepted=", ".join(accepted), remedy="Choose one of these."
        )
