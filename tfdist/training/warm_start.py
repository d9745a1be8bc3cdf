"""Gives a new model what another training has learned: the variables of the same names.

job.warm_start(model, "/shared/run1", renamed={"dense_3/kernel": "dense/kernel"})
job.warm_start(model, "/shared/run1", vocabularies={"words/embeddings": (old, new)})
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError, log
from tfdist.layers import dynamic_embedding
from tfdist.layers.row_index import FREE
from tfdist.storage import files
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.state import TrainingState
from tfdist.upstream import checkpoint_graph

# The parts of a split variable: of TensorFlow, and of tfdist with Keras 3.
_PART = re.compile(r"[/_]part_\d+")


def warm_start(
    state: TrainingState,
    model: Any,
    source: str | os.PathLike[str],
    renamed: Mapping[str, str],
    vocabularies: Mapping[str, tuple[Sequence[object], Sequence[object]]],
) -> None:
    """Sets the variables of a model to those of a training; see `Job.warm_start`.

    Raises:
      UsageError: there is no checkpoint, the model is not built, or a name is none of its
        variables.
      OutputError: all checkpoints are damaged.
    """
    path = files.newest_intact(OutputDirectory(source).checkpoints)
    if path is None:
        raise UsageError(
            "warm_start",
            received=os.fspath(source),
            accepted="the output directory of a training with a checkpoint",
            remedy="Correct the path, or train that model first.",
        )
    own = _by_name(keras_compat.model_variables(model))
    if unknown := {*renamed, *vocabularies} - own.keys():
        raise UsageError.choice("warm_start", sorted(unknown)[0], sorted(own))
    saved = _Saved(path)
    known, lines = 0, []
    for table in dynamic_embedding.of_model(model):
        names = list(_by_name(keras_compat.as_tensorflow(table.weights)))
        for name in names:
            own.pop(name)
        states = {name.rpartition("/")[2]: saved.read(renamed.get(name, name)) for name in names}
        if states["ids"] is None:
            lines.append(f"{table.name}: new")
        else:
            lines.append(f"{table.name}: {_fill(table, states)}")
    for name, parts in own.items():
        value = saved.read(renamed.get(name, name))
        shape = (*(() if not parts[0].shape.rank else (_rows(parts),)), *parts[0].shape[1:])
        if value is None:
            lines.append(f"{name}: new")
        elif name in vocabularies:
            old, new = (list(words) for words in vocabularies[name])
            places = {word: place for place, word in enumerate(old)}
            rows = np.concatenate([part.numpy() for part in parts])
            both = [(row, places[word]) for row, word in enumerate(new) if word in places]
            for row, place in both:
                rows[row] = value[place]
            _assign(parts, rows)
            lines.append(f"{name}: {len(both):,} of {len(new):,} words are known")
        elif value.shape != shape:
            lines.append(f"{name}: new, because its shape was {value.shape} and is {shape}")
        else:
            _assign(parts, value)
            known += 1
    for line in [f"{known} variables of the same shape", *lines] if state.is_chief else ():
        log(f"warm start from {path}: {line}")


class _Saved:
    """The variables in a checkpoint, by the names that they had."""

    def __init__(self, path: str) -> None:
        self._reader = tf.train.load_checkpoint(path)
        nodes = checkpoint_graph.nodes_of(self._reader.get_tensor(checkpoint_graph.KEY))
        self._keys = {
            _PART.sub("", value.full_name): value.checkpoint_key
            for node in nodes
            for value in node.attributes
            if value.name == checkpoint_graph.VARIABLE
        }

    def read(self, name: str) -> Any:
        """The value of a variable; None if there is none of this name."""
        return self._reader.get_tensor(self._keys[name]) if name in self._keys else None


def _fill(table: Any, states: Mapping[str, np.ndarray]) -> str:
    """Gives a dynamic table the rows of another one, those that were met last first."""
    ids, embeddings = states["ids"], states["embeddings"]
    rows = np.argsort(-states["seen"][:-1], kind="stable")
    rows = rows[ids[rows] != FREE]
    placed = table.set_rows(ids[rows], embeddings[rows], of_others=embeddings[-1])
    return f"{placed:,} of {len(rows):,} ids have their rows"


def _name(variable: Any) -> str:
    return _PART.sub("", variable.name).partition(":")[0]


def _by_name(variables: Sequence[Any]) -> dict[str, list[Any]]:
    """The parts of each variable, by its name."""
    found: dict[str, list[Any]] = {}
    for variable in variables:
        found.setdefault(_name(variable), []).append(variable)
    return found


def _rows(parts: Sequence[Any]) -> int:
    return sum(int(part.shape[0]) for part in parts)


def _assign(parts: Sequence[Any], value: np.ndarray) -> None:
    begin = 0
    for part in parts:
        end = begin + (int(part.shape[0]) if part.shape.rank else 0)
        part.assign(value if len(parts) == 1 else value[begin:end])
        begin = end
