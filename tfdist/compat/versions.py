"""The versions of TensorFlow and Keras that train with several replicas, and what is refused.

refusal("2.21.0", keras="3.9.2")           # a sentence, or None
check_fit(row, model, tf.__version__)      # raises UsageError

`docs/versions.md` and `docs/keras3.md` have the tables of supported versions.
"""

from __future__ import annotations

import re
from typing import Any

from tfdist.compat import keras as keras_compat
from tfdist.config.strategies import StrategySpec
from tfdist.errors import UsageError

Version = tuple[int, int]

#: The first and the last version of TensorFlow that tfdist was tested with.
FIRST, LAST = (2, 15), (2, 21)
# From this version on, `tf.keras` is Keras 3, and Keras 2 is tf_keras.
_FIRST_WITH_KERAS_3 = (2, 16)


def is_tested(tensorflow: str) -> bool:
    """Whether tfdist was tested with a version of TensorFlow.

    Raises:
      ValueError: the argument is not a version.
    """
    return FIRST <= version_of(tensorflow) <= LAST


def refusal(tensorflow: str, keras: str) -> str | None:
    """Why these versions do not support `fit` with several replicas; None if they do.

    Untested versions are rejected too: results could be wrong without any warning.

    Args:
      tensorflow: the version of TensorFlow, such as `2.16.2`.
      keras: the version of the model's Keras: 3.x, or 2.x, which is tf_keras if TensorFlow is newer
        than 2.15.

    Returns:
      A sentence that ends with what to install.

    Raises:
      ValueError: an argument is not a version.
    """
    release, of_keras = version_of(tensorflow), version_of(keras)
    # Keras 2 has the version numbers of TensorFlow.
    if is_tested(tensorflow) and of_keras == release:
        return None
    remedy = "install 'tensorflow==2.21.*' and 'keras>=3.10'"
    if _FIRST_WITH_KERAS_3 <= release <= LAST:
        # All newer versions so far behave as 3.10 does.
        if (3, 10) <= of_keras < (4, 0):
            return None
        if (3, 0) <= of_keras < (3, 10):
            return (
                "Keras before 3.10 silently computes wrong results with several tasks or replicas "
                "(3.3: workers diverge; 3.6 and 3.7: wrong weights; 3.8 and 3.9: wrong metrics): "
                "install 'keras>=3.10', or choose one_device."
            )
        if of_keras < (3, 0):
            remedy = f"install 'tf_keras=={release[0]}.{release[1]}.*'"
    return f"TensorFlow {tensorflow} with Keras {keras} is untested: {remedy}."


def check_fit(strategy: StrategySpec, made_by_keras: Any, tensorflow: str) -> None:
    """Checks that the Keras of a model or an optimizer supports `fit` under a strategy.

    Args:
      strategy: the row of the strategy. One with a single replica supports all versions.
      made_by_keras: a model or an optimizer; accepted if it does not come from Keras.
      tensorflow: `tf.__version__`.

    Raises:
      UsageError: it does not.
    """
    try:
        keras = keras_compat.keras_of(made_by_keras).__version__
    except TypeError:
        return
    reason = None if strategy.single_replica else refusal(tensorflow, keras)
    if reason:
        raise UsageError(
            "--strategy",
            received=f"{strategy.name} with TensorFlow {tensorflow} and Keras {keras}",
            accepted="one_device",
            remedy=reason,
        )


def check_same_keras(model: Any, optimizer: Any) -> None:
    """Checks that a model and its optimizer come from the same Keras.

    Accepts objects that do not come from Keras, such as an optimizer of TensorFlow 1.

    Raises:
      UsageError: they do not.
    """
    try:
        own, other = (keras_compat.keras_of(made).__name__ for made in (model, optimizer))
    except TypeError:
        return
    if own != other:
        raise UsageError(
            "optimizer",
            received=f"an optimizer of {other} for a model of {own}",
            accepted=f"an optimizer of {own}",
            remedy=f"Import both from {own}.",
        )


def check_is_of_tf_keras(model: Any, model_class: type) -> None:
    """Checks that a model comes from `tf.keras`, as tfdist's callbacks do.

    Args:
      model: the model.
      model_class: `tf.keras.Model`.

    Raises:
      UsageError: it comes from another Keras.
    """
    own, expected = (keras_compat.keras_of(each).__name__ for each in (model, model_class))
    if own != expected:
        raise UsageError(
            "model",
            received=f"a model of {own}",
            accepted=f"a model of tf.keras, which is {expected}",
            remedy="Import it from tensorflow.keras; to use tf_keras, set TF_USE_LEGACY_KERAS=1 in "
            "every task.",
        )


def version_of(version: str) -> Version:
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise ValueError(f"{version!r} is not a version.")
    return int(match[1]), int(match[2])
