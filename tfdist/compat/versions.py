"""The supported versions of TensorFlow, Keras and Horovod, known without importing them.

installed().stacks                                          # the rows of the table
refusal(row, tensorflow="2.21.0", keras="3.15.1")           # a sentence, or None
check_fit(row, model, tf.__version__)                       # raises UsageError
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfdist.compat import keras as keras_compat
from tfdist.config.strategies import StrategySpec
from tfdist.errors import UsageError
from tfdist.process.version import __version__

Version = tuple[int, int]

#: The environment variable that makes `tf.keras` an alias of tf_keras in TensorFlow 2.16 and newer.
LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"


@dataclass(frozen=True)
class Stack:
    """A row of the table: versions of TensorFlow and Keras that behave in the same way.

    Attributes:
      tensorflow: the first and the last version of TensorFlow.
      keras_3: the first and the last version of Keras 3; None for Keras 2, which has the same
        version numbers as TensorFlow.
      is_correct: whether Keras computes the same results with several replicas as with one.
    """

    tensorflow: tuple[Version, Version]
    keras_3: tuple[Version, Version] | None = None
    is_correct: bool = True

    def includes(self, tensorflow: Version, keras: Version) -> bool:
        """Whether this row contains these two versions."""
        first, last = self.keras_3 or (tensorflow, tensorflow)
        return self.tensorflow[0] <= tensorflow <= self.tensorflow[1] and first <= keras <= last


_WITH_KERAS_3: tuple[Version, Version] = (2, 16), (2, 21)
# All newer versions so far behave as 3.10 does. Keras 4 is not included.
_CORRECT: tuple[Version, Version] = (3, 10), (3, 999)
_INCORRECT: tuple[Version, Version] = (3, 0), (3, 9)

STACKS = (
    Stack(((2, 15), (2, 15))),
    Stack(_WITH_KERAS_3),
    Stack(_WITH_KERAS_3, _CORRECT),
    Stack(_WITH_KERAS_3, _INCORRECT, is_correct=False),
)


@dataclass(frozen=True)
class Installed:
    """The installed versions; None for a package that is not installed.

    Attributes:
      tensorflow: the version of TensorFlow.
      keras: the version of `keras`, which is Keras 2 with TensorFlow 2.15, and Keras 3 otherwise.
      tf_keras: the version of `tf_keras`, which is Keras 2 for newer TensorFlow.
      horovod: the version of Horovod.
    """

    tensorflow: str | None = None
    keras: str | None = None
    tf_keras: str | None = None
    horovod: str | None = None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The rows of the table for the installed versions; empty if these are untested."""
        if self.tensorflow is None:
            return ()
        kerases = filter(None, (self.keras, self.tf_keras))
        stacks = (stack_of(self.tensorflow, keras) for keras in kerases)
        return tuple(filter(None, stacks))

    def __str__(self) -> str:
        names = {"TensorFlow": self.tensorflow, "Keras": self.keras, "tf_keras": self.tf_keras}
        names["Horovod"] = self.horovod
        words = [f"{name} {each}" if each else f"no {name}" for name, each in names.items()]
        return ", ".join([f"tfdist {__version__}", f"Python {platform.python_version()}", *words])


def installed() -> Installed:
    """Reads the installed versions from the packages' metadata."""
    return Installed(
        tensorflow=_installed_version("tensorflow", "tensorflow-cpu"),
        keras=_installed_version("keras"),
        tf_keras=_installed_version("tf_keras"),
        horovod=_installed_version("horovod"),
    )


def stack_of(tensorflow: str, keras: str) -> Stack | None:
    """The row of versions such as `2.16.2` and `3.15.0rc1`; None if they are untested.

    Raises:
      ValueError: an argument is not a version.
    """
    versions = version_of(tensorflow), version_of(keras)
    return next((stack for stack in STACKS if stack.includes(*versions)), None)


def supports(tensorflow: str) -> bool:
    """Whether the table has a row with this version of TensorFlow.

    Raises:
      ValueError: the argument is not a version.
    """
    version = version_of(tensorflow)
    return any(stack.tensorflow[0] <= version <= stack.tensorflow[1] for stack in STACKS)


def untested(tensorflow: str, keras: str) -> str | None:
    """A sentence that says that these versions are untested; None if they are in the table."""
    if stack_of(tensorflow, keras):
        return None
    release = version_of(tensorflow)
    remedy = "install 'tensorflow==2.21.*' and 'keras>=3.10'"
    if version_of(keras) < (3, 0) and _WITH_KERAS_3[0] <= release <= _WITH_KERAS_3[1]:
        remedy = f"install 'tf_keras=={text_of(release)}.*'"
    return f"TensorFlow {tensorflow} with Keras {keras} is untested: {remedy}."


def refusal(strategy: StrategySpec, *, tensorflow: str, keras: str) -> str | None:
    """Why these versions do not support `fit` under a strategy, with the remedy; None if they do.

    Untested versions are rejected too, except for a single replica: with a strategy that a Keras
    does not support, results can be wrong without any warning.

    Args:
      strategy: the row of the strategy.
      tensorflow: the version of TensorFlow.
      keras: the version of the model's Keras: 3.x, or 2.x, which is tf_keras if TensorFlow is newer
        than 2.15.
    """
    if strategy.single_replica:
        return None
    stack = stack_of(tensorflow, keras)
    if stack is None:
        return untested(tensorflow, keras)
    if not stack.is_correct:
        return (
            "Keras before 3.10 silently computes wrong results with several tasks or replicas "
            "(3.3: workers diverge; 3.6 and 3.7: wrong weights; 3.8 and 3.9: wrong metrics): "
            "install 'keras>=3.10', or choose one_device."
        )
    return None


def check_fit(
    strategy: StrategySpec,
    made_by_keras: Any,
    tensorflow_version: str,
    others: Iterable[StrategySpec] = (),
) -> None:
    """Checks that `fit` of a model's or an optimizer's Keras supports a strategy.

    Args:
      strategy: the row of the strategy.
      made_by_keras: a model or an optimizer; accepted if it does not come from Keras.
      tensorflow_version: `tf.__version__`.
      others: the rows of the alternatives.

    Raises:
      UsageError: it does not.
    """
    try:
        keras = text_of(keras_compat.keras_version(made_by_keras))
    except TypeError:
        return
    reason = refusal(strategy, tensorflow=tensorflow_version, keras=keras)
    if reason:
        accepted = [
            other.name
            for other in others
            if refusal(other, tensorflow=tensorflow_version, keras=keras) is None
        ]
        raise UsageError(
            "--strategy",
            received=f"{strategy.name} with TensorFlow {tensorflow_version} and Keras {keras}",
            accepted=", ".join(accepted),
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
            remedy=f"Import it from tensorflow.keras; set {LEGACY_VARIABLE}=1 in every task to use "
            "tf_keras.",
        )


def _installed_version(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def version_of(version: str) -> Version:
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise ValueError(f"{version!r} is not a version.")
    return int(match[1]), int(match[2])


def text_of(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
