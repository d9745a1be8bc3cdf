"""Assigns each layer of a built model to a stage: as the script says, or by bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.layers.stage import stage_of
from tfdist.process import quantities
from tfdist.strategies.in_graph.cut import cut
from tfdist.strategies.sizes import bytes_of


@dataclass(frozen=True)
class Stage:
    """A stage of a model.

    Attributes:
      layers: its layers, in the order of the model.
    """

    layers: tuple[Any, ...]

    @property
    def variables(self) -> list[Any]:
        """The variables of the layers, each once."""
        found = {id(v): v for layer in self.layers for v in layer.variables}
        return keras_compat.without_vocabularies(found.values())

    def __str__(self) -> str:
        names = [layer.name for layer in self.layers]
        names = names if len(names) < 4 else [names[0], "…", names[-1]]
        parameters = sum(variable.shape.num_elements() or 0 for variable in self.variables)
        size = quantities.size(sum(map(bytes_of, self.variables)))
        return f"{', '.join(names)}: {parameters:,} parameters, {size}"


def stages_of(model: Any, count: int) -> tuple[Stage, ...]:
    """Assigns the layers of a model to stages.

    Args:
      model: a built `tf.keras.Model`. Its layers are in the order of `model.layers`; those of a
        Sequential or functional model within it count one by one, and any other layer as a whole.
      count: the number of stages.

    Raises:
      UsageError: the model has fewer layers with weights than stages; or the script's stages do not
        have the numbers 0 to `count` - 1, or give a layer two of them.
    """
    layers = list(dict.fromkeys(_layers(model, None)))
    if count == 1:
        return (Stage(tuple(dict.fromkeys(layer for layer, _ in layers))),)
    assigned = _given(layers, count) or _cut(model, [layer for layer, _ in layers], count)
    return tuple(
        Stage(
            tuple(layer for (layer, _), own in zip(layers, assigned, strict=True) if own == stage)
        )
        for stage in range(count)
    )


def _layers(model: Any, stage: int | None) -> Iterator[tuple[Any, int | None]]:
    """The layers of a model that run as a whole, with the stage that the script gave them."""
    for layer in keras_compat.layers_of(model):
        own = stage_of(layer)
        own = stage if own is None else own
        if keras_compat.is_graph_of_layers(layer):
            yield from _layers(layer, own)
        else:
            yield layer, own


def _given(layers: Sequence[tuple[Any, int | None]], count: int) -> list[int] | None:
    """The stage of each layer, as the script sets it; None if the script sets no stages.

    A layer without a stage gets the stage of the layer before it.
    """
    given = {stage for _, stage in layers if stage is not None}
    if not given:
        return None
    stage_of_layer: dict[Any, int | None] = {}
    for layer, stage in layers:
        # Only a layer that two models within the model share can be listed twice.
        if stage_of_layer.setdefault(layer, stage) != stage:
            raise UsageError(
                "tfdist.stage",
                received=f"layer {layer.name} in models of different stages",
                accepted="one stage for each layer",
                remedy="Create the layer in the block of its stage.",
            )
    missing, beyond = set(range(count)) - given, given - set(range(count))
    if missing or beyond:
        raise UsageError(
            "tfdist.stage",
            received=f"stages {', '.join(map(str, sorted(given)))} with --stages={count}",
            accepted=f"a layer in each of the stages 0 to {count - 1}",
            remedy="Correct the script or --stages.",
        )
    assigned = []
    last = 0
    for _, stage in layers:
        last = last if stage is None else stage
        assigned.append(last)
    return assigned


def _cut(model: Any, layers: list[Any], count: int) -> list[int]:
    """Cuts the layers into stages of similar size; each cut is before a layer with weights."""
    groups: list[list[Any]] = []
    for layer in layers:
        if not groups or (layer.weights and any(own.weights for own in groups[-1])):
            groups.append([])
        groups[-1].append(layer)
    if len(groups) < count:
        most = sum(any(layer.weights for layer in group) for group in groups)
        raise UsageError(
            "--stages",
            received=f"{count} for model {model.name}, of {most} layers with weights",
            accepted=f"1 to {most}" if most > 1 else "1",
            remedy="Choose fewer stages.",
        )
    assigned = cut([sum(map(_bytes_of_layer, group)) for group in groups], count)
    return [stage for stage, group in zip(assigned, groups, strict=True) for _ in group]


def _bytes_of_layer(layer: Any) -> int:
    return sum(map(bytes_of, keras_compat.without_vocabularies(layer.variables)))
