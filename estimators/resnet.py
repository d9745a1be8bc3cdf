"""The ResNet of the CIFAR-10 experiments, as a Keras model.

    model = cifar_resnet(num_layers=20)    # images [batch, 32, 32, 3] to logits [batch, 10]

He et al. 2015 (arXiv:1512.03385), section 4.2.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.errors import UsageError

_FILTERS = (16, 32, 64)


def check_num_layers(num_layers: int) -> None:
    """Checks the number of layers of a CIFAR ResNet.

    Raises:
      UsageError: it is not 6n + 2.
    """
    if num_layers < 8 or num_layers % 6 != 2:
        raise UsageError(
            "--num_layers",
            received=num_layers,
            accepted="6n + 2: 8, 14, 20, 26, 32, 38, 44, …",
            remedy="Choose the nearest of these.",
        )


def cifar_resnet(
    num_layers: int = 44,
    *,
    num_classes: int = 10,
    weight_decay: float | None = 2e-4,
    batch_norm_decay: float = 0.997,
    batch_norm_epsilon: float = 1e-5,
    data_format: str = "channels_last",
) -> tf.keras.Model:
    """A ResNet v1 of basic blocks with parameter-free shortcuts (option A).

    Args:
      num_layers: 6n + 2, for n blocks in each of three stages.
      num_classes: the number of logits.
      weight_decay: L2 regularization of all kernels; None or 0 for none.
      batch_norm_decay: momentum of the moving statistics.
      batch_norm_epsilon: added to the variance.
      data_format: `channels_last` or `channels_first`, for all internal layers. Images and weights
        do not depend on it, so checkpoints work with both formats.

    Returns:
      A model that maps images, float32 [batch, 32, 32, 3] in 0..255, to logits, float32
      [batch, num_classes].

    Raises:
      UsageError: `num_layers` is not 6n + 2, or `data_format` is unknown.
    """
    check_num_layers(num_layers)
    if data_format not in ("channels_last", "channels_first"):
        raise UsageError(
            "data_format",
            received=data_format,
            accepted="channels_last, channels_first",
            remedy="Choose one of these.",
        )
    channels = -1 if data_format == "channels_last" else 1
    regularizer = tf.keras.regularizers.L2(weight_decay) if weight_decay else None

    def convolution(x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
        x = tf.keras.layers.Conv2D(
            filters,
            3,
            strides=strides,
            padding="same",
            data_format=data_format,
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=regularizer,
        )(x)
        return tf.keras.layers.BatchNormalization(
            axis=channels, momentum=batch_norm_decay, epsilon=batch_norm_epsilon
        )(x)

    def shortcut(x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
        missing = filters - x.shape[channels]
        if strides > 1:
            x = tf.keras.layers.AveragePooling2D(strides, data_format=data_format)(x)
        if missing:
            # A layer, because `tf.pad` makes Keras start its own session in an Estimator. The layer
            # pads rows and columns; with the opposite data format, it pads the channels.
            ends = (missing // 2, missing - missing // 2)
            if data_format == "channels_last":
                x = tf.keras.layers.ZeroPadding2D(((0, 0), ends), "channels_first")(x)
            else:
                x = tf.keras.layers.ZeroPadding2D((ends, (0, 0)), "channels_last")(x)
        return x

    images = tf.keras.Input([32, 32, 3], name="images")
    x = tf.keras.layers.Rescaling(1 / 128, offset=-1)(images)
    if data_format == "channels_first":
        x = tf.keras.layers.Permute([3, 1, 2])(x)
    x = tf.keras.layers.ReLU()(convolution(x, _FILTERS[0], strides=1))
    for stage, filters in enumerate(_FILTERS):
        for block in range((num_layers - 2) // 6):
            strides = 2 if stage and not block else 1
            y = tf.keras.layers.ReLU()(convolution(x, filters, strides))
            y = convolution(y, filters, strides=1)
            y = tf.keras.layers.Add()([y, shortcut(x, filters, strides)])
            x = tf.keras.layers.ReLU()(y)
    x = tf.keras.layers.GlobalAveragePooling2D(data_format)(x)
    logits = tf.keras.layers.Dense(num_classes, kernel_regularizer=regularizer, name="logits")(x)
    return tf.keras.Model(images, logits, name=f"resnet{num_layers}")
