"""What works with which TensorFlow and Keras, known without importing either.

print("\n".join(table(installed())))                                # tfdist check --versions
refusal("horovod", tensorflow="2.21.0", keras="3.15.1")             # a sentence, or None
check_fit("mirrored", model, tf.__version__)                        # raises UsageError
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.strategies import table as strategies
from tfdist.strategies.table import TABLE
from tfdist.version import __version__

Loop = Literal["fit", "estimator", "custom"]
Version = tuple[int, int]

#: The loops by name, and in words; the letter of each is its first, in capitals.
LOOPS: dict[Loop, str] = {"fit": "fit", "estimator": "Estimators", "custom": "custom loops"}

#: What makes `tf.keras` of TensorFlow 2.16 and newer tf_keras.
LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"

_COLUMNS = 100
_NEWEST = "install 'tensorflow==2.21.*' and 'keras>=3.10'"


@dataclass(frozen=True)
class Stack:
    """A row of the table: versions of TensorFlow and Keras that behave alike.

    Attributes:
      tensorflow: the first and the last TensorFlow.
      keras: what the user calls its Keras.
      keras_3: the first and the last Keras 3; None where it is Keras 2, whose versions are numbered
        as those of TensorFlow.
      has_estimators: whether its TensorFlow has Estimators.
      builds_horovod: whether Horovod can be compiled against its TensorFlow.
      is_right: whether Keras computes with several replicas what it does with one.
    """

    tensorflow: tuple[Version, Version]
    keras: str
    keras_3: tuple[Version, Version] | None = None
    has_estimators: bool = False
    builds_horovod: bool = False
    is_right: bool = True

    def includes(self, tensorflow: Version, keras: Version) -> bool:
        """Whether these two versions are of this row."""
        first, last = self.keras_3 or (tensorflow, tensorflow)
        return self.tensorflow[0] <= tensorflow <= self.tensorflow[1] and first <= keras <= last

    @property
    def tensorflows(self) -> str:
        """The versions of TensorFlow, for the user: `2.16 - 2.18`."""
        return " - ".join(dict.fromkeys(map(_text, self.tensorflow)))


_WITH_HOROVOD: tuple[Version, Version] = (2, 16), (2, 18)
_WITHOUT_HOROVOD: tuple[Version, Version] = (2, 19), (2, 21)
# Each newer one so far is as 3.10; a Keras 4 would not be.
_RIGHT: tuple[Version, Version] = (3, 10), (3, 999)
_WRONG: tuple[Version, Version] = (3, 0), (3, 9)

STACKS = (
    Stack(((2, 15), (2, 15)), "2.15", has_estimators=True, builds_horovod=True),
    Stack(_WITH_HOROVOD, "tf_keras", builds_horovod=True),
    Stack(_WITHOUT_HOROVOD, "tf_keras"),
    Stack(_WITH_HOROVOD, "3.10 or newer", _RIGHT, builds_horovod=True),
    Stack(_WITHOUT_HOROVOD, "3.10 or newer", _RIGHT),
    Stack((_WITH_HOROVOD[0], _WITHOUT_HOROVOD[1]), "3.0 - 3.9", _WRONG, is_right=False),
)


@dataclass(frozen=True)
class Installed:
    """The versions of this environment; None for what is not installed.

    Attributes:
      tensorflow: TensorFlow's.
      keras: that of the package `keras`: Keras 2 with TensorFlow 2.15, else Keras 3.
      tf_keras: that of `tf_keras`, which is Keras 2 for newer TensorFlow.
      horovod: Horovod's.
    """

    tensorflow: str | None = None
    keras: str | None = None
    tf_keras: str | None = None
    horovod: str | None = None

    @property
    def kerases(self) -> tuple[str, ...]:
        """Each Keras that a script may import."""
        return tuple(version for version in (self.keras, self.tf_keras) if version)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The rows of the table that this environment is; none where it is untested."""
        if self.tensorflow is None:
            return ()
        found = (stack_of(self.tensorflow, keras) for keras in self.kerases)
        return tuple(stack for stack in found if stack)

    def __str__(self) -> str:
        names = {"TensorFlow": self.tensorflow, "Keras": self.keras, "tf_keras": self.tf_keras}
        versions = {**names, "Horovod": self.horovod}
        words = [
            f"{name} {version}" if version else f"no {name}" for name, version in versions.items()
        ]
        return ", ".join([f"tfdist {__version__}", f"Python {platform.python_version()}", *words])


def installed() -> Installed:
    """What pip says of this environment."""
    return Installed(
        tensorflow=_version_of("tensorflow", "tensorflow-cpu"),
        keras=_version_of("keras"),
        tf_keras=_version_of("tf_keras"),
        horovod=_version_of("horovod"),
    )


def stack_of(tensorflow: str, keras: str) -> Stack | None:
    """The row of these versions, such as `2.16.2` and `3.15.0rc1`; None where they are untested.

    Raises:
      ValueError: one of them is not a version.
    """
    versions = _parse(tensorflow), _parse(keras)
    return next((stack for stack in STACKS if stack.includes(*versions)), None)


def untested(tensorflow: str, keras: str) -> str | None:
    """The sentence that says that nobody has tried these versions; None where they are known."""
    if stack_of(tensorflow, keras):
        return None
    release = _parse(tensorflow)
    remedy = _NEWEST
    if _parse(keras) < (3, 0) and _WITH_HOROVOD[0] <= release <= _WITHOUT_HOROVOD[1]:
        remedy = f"install 'tf_keras=={_text(release)}.*'"
    return f"TensorFlow {tensorflow} with Keras {keras} is untested: {remedy}."


def refusal(strategy: str, *, tensorflow: str, keras: str, loop: Loop = "fit") -> str | None:
    """Why something cannot be had with these versions, and what to do; None where it can.

    What is untested is refused, too, except that one process may train by itself: where a Keras
    does not fit its strategy, what it computes is wrong, and it says nothing.

    Args:
      strategy: its name in `strategies.TABLE`.
      tensorflow: the version of TensorFlow.
      keras: the version of the Keras that makes the model: 3.x, or 2.x, which is tf_keras where
        TensorFlow is newer than 2.15.
      loop: what trains.

    Raises:
      UsageError: there is no such strategy.
    """
    strategies.row(strategy)
    stack = stack_of(tensorflow, keras)
    if stack:
        return _refusal(stack, strategy, loop, _text(_parse(tensorflow)))
    is_alone = strategy == "one_device" and loop != "estimator"
    return None if is_alone else untested(tensorflow, keras)


def _refusal(stack: Stack, strategy: str, loop: Loop, tensorflow: str) -> str | None:
    """`refusal` for a row, and for one of its versions of TensorFlow."""
    if loop == "estimator":
        if not stack.has_estimators:
            return (
                f"TensorFlow {tensorflow} has no Estimators: install 'tensorflow==2.15.1', "
                "or train a Keras model."
            )
        if not TABLE[strategy].estimator:
            others = ", ".join(name for name, other in TABLE.items() if other.estimator)
            return f"{strategy} is not for Estimators: choose one of {others}."
    if not stack.is_right and strategy != "one_device":
        return (
            "Keras before 3.10 is wrong with several tasks or replicas and does not say so (3.3: "
            "workers diverge; 3.6 and 3.7: wrong weights; 3.8 and 3.9: wrong metrics): "
            "install 'keras>=3.10', or choose one_device."
        )
    if strategy == "horovod" and not stack.builds_horovod:
        return (
            "Horovod 0.28.1 builds against no TensorFlow after 2.18: install 'tensorflow==2.18.*', "
            "or choose multi_worker_mirrored."
        )
    shares_variables = strategy in ("central_storage", "parameter_server")
    if loop == "custom" and stack.keras_3 and shares_variables:
        return (
            "Metrics of Keras 3 miscount in a custom loop whose replicas share variables: train "
            f"with fit, or install 'tf_keras=={tensorflow}.*' and set {LEGACY_VARIABLE}=1."
        )
    return None


def check_fit(strategy: str, made_by_keras: Any, tensorflow_version: str) -> None:
    """Checks that Keras's `fit` can be had, for the very Keras that a model or an optimizer is of.

    Args:
      strategy: its name in `strategies.TABLE`.
      made_by_keras: a model or an optimizer; what is made by no Keras passes.
      tensorflow_version: `tf.__version__`.

    Raises:
      UsageError: it cannot be had.
    """
    try:
        keras = _text(keras_compat.keras_version(made_by_keras))
    except TypeError:
        return
    reason = refusal(strategy, tensorflow=tensorflow_version, keras=keras)
    if reason:
        accepted = [
            name
            for name in TABLE
            if refusal(name, tensorflow=tensorflow_version, keras=keras) is None
        ]
        raise UsageError(
            "--strategy",
            received=f"{strategy} with TensorFlow {tensorflow_version} and Keras {keras}",
            accepted=", ".join(accepted),
            remedy=reason,
        )


def check_same_keras(model: Any, optimizer: Any) -> None:
    """Checks that a model and its optimizer come from one Keras.

    What is made by no Keras, such as an optimizer of TensorFlow 1, is not judged.

    Raises:
      UsageError: they do not.
    """
    try:
        names = [keras_compat.keras_of(made).__name__ for made in (model, optimizer)]
        versions = [_text(keras_compat.keras_version(made)[:2]) for made in (model, optimizer)]
    except TypeError:
        return
    if names[0] != names[1]:
        raise UsageError(
            "optimizer",
            received=f"one of {names[1]} {versions[1]}, for a model of {names[0]} {versions[0]}",
            accepted=f"one of {names[0]}",
            remedy=f"Import both from {names[0]}.",
        )


def check_is_of_tf_keras(model: Any, model_class: type) -> None:
    """Checks that a model is one of `tf.keras`, as the callbacks of tfdist are.

    Args:
      model: the model.
      model_class: `tf.keras.Model`.

    Raises:
      UsageError: it comes from another Keras.
    """
    own, expected = (
        keras_compat.keras_of(model).__name__,
        keras_compat.keras_of(model_class).__name__,
    )
    if own != expected:
        raise UsageError(
            "model",
            received=f"one of {own}",
            accepted=f"one of tf.keras, which is {expected}",
            remedy=f"Import it from tensorflow.keras; {LEGACY_VARIABLE}=1 in every task makes that "
            "tf_keras.",
        )


def table(found: Installed) -> list[str]:
    """The table in lines of at most 100 columns, with the rows of `found` marked."""
    # The names are too long for one line, and have a place to break: multi_worker_, mirrored.
    breaks = [name.rpartition("_") for name in TABLE]
    lines = [
        ["", "", *(before + underscore for before, underscore, _ in breaks)],
        ["TensorFlow", "Keras", *(last for _, _, last in breaks)],
        *(
            [stack.tensorflows, stack.keras, *(_cell(stack, name) for name in TABLE)]
            for stack in STACKS
        ),
    ]
    marks = ["", "", *(">" if stack in found.stacks else "" for stack in STACKS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        *(
            f"{mark:1} {'  '.join(map(str.ljust, line, widths))}".rstrip()
            for mark, line in zip(marks, lines, strict=True)
        ),
        "",
        "F: fit, E: Estimators, C: custom loops (job.strategy); -: not to be had; >: installed.",
        f"tf_keras: with {LEGACY_VARIABLE}=1, and with the number of its TensorFlow.",
        "Keras 3 takes no --variable_partitions. Other versions are untested.",
    ]


def remarks(found: Installed) -> list[str]:
    """What is untested or refused in this environment, and what to do about it, in lines.

    A cell that each Keras of this environment refuses for the same reason is told once.
    """
    if found.tensorflow is None:
        return _wrapped(f"TensorFlow is not installed: {_NEWEST}.")
    if not found.kerases:
        return _wrapped(f"Keras is not installed: {_NEWEST}.")
    lines: list[str] = []
    refused: dict[str, list[tuple[Loop, str]]] = {}
    for keras in found.kerases:
        stack = stack_of(found.tensorflow, keras)
        if stack is None:
            lines += _wrapped(untested(found.tensorflow, keras) or "")
            continue
        for loop in LOOPS:
            for name in TABLE:
                sentence = _refusal(stack, name, loop, _text(_parse(found.tensorflow)))
                if sentence:
                    refused.setdefault(sentence, []).append((loop, name))
    if refused:
        lines.append("Not to be had in this environment:")
    for sentence, cells in refused.items():
        loops = " and ".join(dict.fromkeys(LOOPS[loop] for loop, _ in cells))
        names = list(dict.fromkeys(name for _, name in cells))
        under = "every strategy" if len(names) == len(TABLE) else ", ".join(names)
        lines += _wrapped(f"{loops} under {under}", indent=2)
        lines += _wrapped(sentence, indent=6)
    return lines


def _cell(stack: Stack, strategy: str) -> str:
    newest = _text(stack.tensorflow[1])
    return "".join(
        "-" if _refusal(stack, strategy, loop, newest) else loop[0].upper() for loop in LOOPS
    )


def _wrapped(text: str, indent: int = 0) -> list[str]:
    margin = " " * indent
    # Else what is to be typed would be broken at its dashes.
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )


def _version_of(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _parse(version: str) -> Version:
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise ValueError(f"{version!r} is not a version.")
    return int(match[1]), int(match[2])


def _text(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
