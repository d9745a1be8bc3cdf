"""Stores a description of the model in its checkpoints, and compares it before a restore.

    layout = Layout(model, variables)          # a part of the checkpoint
    check(layout, "/shared/run1/checkpoints/ckpt-7")   # before it is restored

TensorFlow restores what fits by its place in the model, and says nothing about the rest. A model
with one layer more or fewer would be restored in part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError, log

#: The name of a `Layout` in a checkpoint.
NAME = "layout"

# The parts of a split variable, which may be others in another job.
_PART = re.compile(r"/part_\d+")


class Layout(tf.train.experimental.PythonState):
    """The variables of a model, and its optimizers.

    Args:
      model: the model; read when the checkpoint is saved.
      variables: returns its variables.
    """

    def __init__(self, model: tf.keras.Model, variables: Callable[[], Sequence[Any]]) -> None:
        self._model = model
        self._variables = variables

    def serialize(self) -> str:
        return json.dumps(self.content())

    def deserialize(self, string_value: bytes) -> None:
        """Does nothing: `check` reads the value before the checkpoint is restored."""

    def content(self) -> dict[str, Any]:
        """The version of Keras, the names and shapes of the variables, and the optimizers."""
        shapes: list[tuple[str, list[int]]] = []
        for variable in self._variables():
            name = _PART.sub("", variable.name).partition(":")[0]
            shape = [] if variable.shape.rank is None else list(variable.shape)
            is_part = _PART.search(variable.name) is not None
            if is_part and shapes and shapes[-1][0] == name:
                shapes[-1][1][0] += shape[0]
            else:
                shapes.append((name, shape))
        optimizers = keras_compat.optimizers_of(self._model)
        return {
            "keras": 3 if keras_compat.is_keras_3(self._model) else 2,
            "variables": shapes,
            "optimizers": list(map(_kind, optimizers)),
            "slots": [_slots(each) for each in optimizers],
            "trained": _elements(keras_compat.as_tensorflow(self._model.trainable_variables)),
        }


def check(layout: Layout, path: str, *, warn: bool) -> None:
    """Checks that a checkpoint is one of this model; does nothing for those of earlier releases.

    Args:
      layout: the layout of the model.
      path: the checkpoint.
      warn: whether to log that the optimizer is another one.

    Raises:
      UsageError: the checkpoint is one of another model, or of another Keras.
    """
    saved, own = _read(path), layout.content()
    if saved is None or not own["variables"]:
        return
    if saved["keras"] != own["keras"]:
        raise _other_model(path, f"was saved with Keras {saved['keras']}")
    for there, here in zip_longest(saved["variables"], own["variables"]):
        if there is None:
            raise _other_model(path, f"lacks {here[0]}, with the shape {here[1]}")
        if here is None:
            raise _other_model(path, f"has {there[0]} too, with the shape {there[1]}")
        if list(there[1]) != here[1]:
            raise _other_model(path, f"has {there[0]} with the shape {there[1]}, not {here[1]}")
    there, here = (", ".join(each["optimizers"]) or "no optimizer" for each in (saved, own))
    is_other = saved["optimizers"] != own["optimizers"]
    # An optimizer that is not built has no slots yet.
    have_slots = None not in (*own["slots"], *saved["slots"])
    if saved["trained"] != own["trained"]:
        raise _other_model(path, "was saved with other frozen layers")
    # TensorFlow would restore the slots of one optimizer into those of the other.
    if have_slots and (is_other or saved["slots"] != own["slots"]):
        options = "" if is_other else " with other options"
        raise _other_model(path, f"has the state of {there}, and the model has {here}{options}")
    if warn and is_other:
        log(f"warning: {path} has the state of {there}; {here} starts without one")


def _elements(variables: Sequence[Any]) -> int:
    return sum(variable.shape.num_elements() or 0 for variable in variables)


def _kind(optimizer: Any) -> str:
    name = type(optimizer).__name__.removeprefix("Distributed")
    inner = [type(each).__name__ for each in keras_compat.inner_optimizers(optimizer)]
    return f"{name} of {' and '.join(inner)}" if len(inner) > 1 else name


def _slots(optimizer: Any) -> int | None:
    """The number of elements of an optimizer's variables; None if it is not built."""
    variables = keras_compat.optimizer_variables(optimizer)
    # Its counter and its learning rate always exist.
    return _elements(variables) if len(variables) > 2 else None


def _read(path: str) -> dict[str, Any] | None:
    reader = tf.train.load_checkpoint(path)
    keys = [key for key in reader.get_variable_to_shape_map() if key.startswith(f"{NAME}/")]
    return json.loads(reader.get_tensor(keys[0])) if keys else None


def _other_model(path: str, problem: str) -> UsageError:
    return UsageError(
        "output_dir",
        received=f"the checkpoint {path}, which {problem}",
        accepted="a directory without checkpoints, or with those of this model",
        remedy="Choose another output directory, or train the model that was saved.",
    )
