"""The CIFAR-10 Estimator: model function, hyperparameters and input functions.

    params = HyperParameters(num_layers=20, batch_size=64, num_examples=40_000)
    config = tfdist.estimator.RunConfig(job, "/shared/run1")
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    estimator.train(train_input("/data/cifar10", batch_size=64), max_steps=1_000)

The training is that of TensorFlow's CIFAR-10 Estimator tutorial (2018), after He et al. 2015
(arXiv:1512.03385), section 4.2.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import tensorflow as tf

from estimators.resnet import check_num_layers, cifar_resnet
from tfdist.data import cifar10
from tfdist.data.inputs import DatasetFunction
from tfdist.errors import UsageError
from tfdist.estimator import RunConfig

#: The factors of the learning rate after each of the decay epochs.
DECAYS = (0.1, 0.01, 0.002)

_KERAS_DATA_FORMATS = {
    "NHWC": "channels_last",
    "NCHW": "channels_first",
    "channels_last": "channels_last",
    "channels_first": "channels_first",
}


@dataclass(frozen=True)
class HyperParameters:
    """The parameters of the model function.

    Attributes:
      num_layers: the number of layers of the ResNet, 6n + 2.
      batch_size: the training batch size of one replica.
      num_examples: the number of images in the training split, over all tasks.
      learning_rate: the rate before the first decay. It is not scaled with the number of replicas,
        as in the tutorial; pass `job.scaled_lr(rate)` for the linear scaling rule.
      decay_epochs: one to three epochs, ascending. From each one on, the rate is `learning_rate`
        times the next factor of `DECAYS`.
      momentum: the momentum of SGD.
      weight_decay: the factor of half the squared norm of all trainable variables, including the
        scales and offsets of batch normalization.
      batch_norm_decay: momentum of the moving statistics.
      batch_norm_epsilon: added to the variance.
      data_format: `NHWC` or `channels_last`, `NCHW` or `channels_first`; None for NCHW on a GPU and
        NHWC otherwise.
      variable_strategy: `CPU` or `GPU`, the device of the variables in a single process. Parameter
        servers and `tf.distribute` strategies place the variables themselves.

    Raises:
      UsageError: a value is invalid.
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
        check_num_layers(self.num_layers)
        _check_one_of("--variable_strategy", self.variable_strategy, ("CPU", "GPU"))
        if self.data_format is not None:
            _check_one_of("--data_format", self.data_format, tuple(_KERAS_DATA_FORMATS))
        epochs = self.decay_epochs
        if not 0 < len(epochs) <= len(DECAYS) or list(epochs) != sorted(set(epochs)):
            raise UsageError(
                "--decay_epochs",
                received=",".join(map(str, epochs)),
                accepted=f"1 to {len(DECAYS)} epochs, ascending",
                remedy="List the epochs at which the learning rate decays.",
            )

    def learning_rate_at(self, step: tf.Tensor, global_batch_size: int) -> tf.Tensor:
        """The learning rate after `step` updates, each of `global_batch_size` examples.

        If a job resumes with a different number of workers or batch size, its earlier steps count
        as if they had the current `global_batch_size`.

        Args:
          step: the global step, an integer scalar.
          global_batch_size: examples per step. With asynchronous workers, this is the batch size of
            one worker.

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
        """`data_format` with Keras's names, for the devices that this process uses.

        Raises:
          UsageError: NCHW without a GPU.
        """
        has_gpu = bool(tf.config.get_visible_devices("GPU"))
        if self.data_format is None:
            return "channels_first" if has_gpu else "channels_last"
        keras_data_format = _KERAS_DATA_FORMATS[self.data_format]
        # On the CPU TensorFlow has no NCHW pooling, and with oneDNN its results are wrong.
        if keras_data_format == "channels_first" and not has_gpu:
            raise UsageError(
                "--data_format",
                received=self.data_format,
                accepted="NHWC or channels_last on the CPU",
                remedy="Leave the flag out: each task then uses the format for its devices.",
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

    Keras initializes the weights, so `tf.keras.utils.set_random_seed` makes them reproducible;
    `tf_random_seed` of the configuration does not.

    Args:
      features: images, float32 [batch, 32, 32, 3] in 0..255.
      labels: int32 [batch], 0 to 9; None to predict.
      mode: a `tf.estimator.ModeKeys`.
      params: the hyperparameters.
      config: the configuration; its `job` wraps the optimizer and knows the global batch size.

    Returns:
      The specification. Its predictions, which are also the serving signature, are `classes`, int64
      [batch], and `probabilities`, float32 [batch, 10]. The metric is `accuracy`.

    Raises:
      UsageError: `num_layers` is not 6n + 2, or the data format is NCHW without a GPU.
    """
    training = mode == tf.estimator.ModeKeys.TRAIN
    with _variable_device(params, config):
        # The loss below includes the weight decay, which covers more than the kernels.
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
    optimizer = config.job.wrap_optimizer(
        tf.compat.v1.train.MomentumOptimizer(rate, params.momentum)
    )
    # Estimators run only the train_op, so it must include the updates of the moving statistics.
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
    """An input function of the training split: this task's shard, shuffled and infinite.

    See `tfdist.data.cifar10.dataset` for its datasets and errors.

    Args:
      data_dir: the directory of the records.
      batch_size: the batch size of one replica.
      distort: crops images randomly.
      flip: flips images randomly; wrong for digits.
      seed: makes the order and the distortions reproducible.
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
    """An input function of a split, with each example once, in order.

    Args:
      data_dir: the directory of the records.
      split: `train`, `validation` or `eval`.
      batch_size: the number of images per batch; the last batch may have fewer.
    """

    def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        return cifar10.dataset(data_dir, split, input_context, batch_size=batch_size)

    return input_fn


def serving_input_receiver_fn() -> tf.estimator.export.TensorServingInputReceiver:
    """The input of the served model: `images`, float32 [batch, 32, 32, 3] in 0..255."""
    images = tf.compat.v1.placeholder(tf.float32, [None, 32, 32, 3], name="images")
    return tf.estimator.export.TensorServingInputReceiver(images, {"images": images})


def _variable_device(params: HyperParameters, config: RunConfig) -> AbstractContextManager[None]:
    """The device scope of the variables in a single process."""
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
