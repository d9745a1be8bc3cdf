"""Variables of other machines, read together when they are saved.

    remote = RemoteVariables()
    with remote.read_together():
        checkpoint.save(path, options=…)    # with an experimental_io_device

TensorFlow traces a function that reads them one by one, anew for every checkpoint, because that is
how it writes what is on several devices. Here the function is kept, and what it has read is on one.
Variables that are divided among the ps are left to TensorFlow, and it traces then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.checkpoint import TrackableSaver
from tensorflow.python.training.saving.saveable_object import SaveSpec


class RemoteVariables:
    """Reads those of one training whenever they are saved."""

    def __init__(self) -> None:
        self._variables: list[tf.Variable] = []
        self._read: Any = None

    @contextmanager
    def read_together(self) -> Iterator[None]:
        """While the block runs, checkpoints and SavedModels are written of values read so."""
        gather = TrackableSaver._gather_serialized_tensors

        def gather_here(saver: Any, object_graph_tensor: Any = None) -> Any:
            tensors, *others = gather(saver, object_graph_tensor)
            if tf.executing_eagerly():
                self._bring_here(tensors)
            return tensors, *others

        TrackableSaver._gather_serialized_tensors = gather_here
        try:
            yield
        finally:
            TrackableSaver._gather_serialized_tensors = gather

    def _bring_here(self, tensors: Any) -> None:
        """Puts values in the place of what tells how to read variables.

        Args:
          tensors: by what is saved, and by key, what is written or tells how to get it.
        """
        found = []
        for saved, by_key in tensors.items():
            # The variables of a strategy are saved by an object that stands for them.
            variable = getattr(saved, "obj", saved)
            for key, spec in by_key.items():
                if isinstance(variable, tf.Variable) and isinstance(spec, SaveSpec):
                    found.append((variable, by_key, key, spec))
        values = self._values([variable for variable, *_ in found])
        for (_, by_key, key, spec), value in zip(found, values, strict=True):
            by_key[key] = SaveSpec(value, spec.slice_spec, spec.name)

    def _values(self, variables: list[tf.Variable]) -> list[tf.Tensor]:
        # A model without its optimizer is read with it: that takes less than to trace again.
        if not set(map(id, variables)) <= set(map(id, self._variables)):
            self._variables, self._read = variables, _reading(variables)
        if not variables:
            return []
        by_id = dict(zip(map(id, self._variables), self._read(), strict=True))
        return [by_id[id(variable)] for variable in variables]


def _reading(variables: list[tf.Variable]) -> Any:
    @tf.function(autograph=False)
    def read() -> list[tf.Tensor]:
        # Else they would stay where they are, and be sent one by one when they are written.
        with tf.device("/device:CPU:0"):
            return [tf.identity(variable.read_value()) for variable in variables]

    return read
