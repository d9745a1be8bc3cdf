"""The sizes of a model and of its pipeline stages.

model = Model.of_layers(layers, input_bytes=3136, output_bytes=40)     # known layers
model = Model.even(parameter_bytes=100e6, border_bytes=400e3)          # only totals
first, last = model.stages(2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.planner.cut import cut

#: Bytes of a parameter, a gradient or an activation: float32.
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Layer:
    """A layer, or several layers that follow each other: a stage.

    Attributes:
      parameter_bytes: bytes of its trainable weights.
      activation_bytes: bytes of its outputs per example, which the backward pass needs; None if
        unknown.
      border_bytes: bytes per example that pass to later layers when the model is cut after it:
        its own outputs, and those of earlier layers that later ones use.
      untrained_bytes: bytes of its other weights, such as those of a frozen layer.
    """

    parameter_bytes: float
    activation_bytes: float | None
    border_bytes: float
    untrained_bytes: float = 0

    @property
    def weight_bytes(self) -> float:
        """Bytes of all its weights."""
        return self.parameter_bytes + self.untrained_bytes


@dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
      parameter_bytes: bytes of the trainable weights.
      input_bytes: bytes of the inputs, per example.
      output_bytes: bytes of the outputs, per example.
      border_bytes: bytes per example that cross a border between stages, if there are no `layers`.
      layers: the layers with weights in the order of the forward pass, each with the layers
        without weights that follow it; empty if only the totals are known.
      untrained_bytes: bytes of the other weights.
    """

    parameter_bytes: float
    input_bytes: float
    output_bytes: float
    border_bytes: float = 0
    layers: tuple[Layer, ...] = ()
    untrained_bytes: float = 0

    @classmethod
    def even(cls, parameter_bytes: float, border_bytes: float) -> Model:
        """A model that divides into equal stages; its inputs and outputs are as a border."""
        return cls(parameter_bytes, border_bytes, border_bytes, border_bytes)

    @classmethod
    def of_layers(cls, layers: Sequence[Layer], input_bytes: float, output_bytes: float) -> Model:
        """A model with known layers. As in `in_graph`, a stage begins with a layer with weights."""
        groups: list[list[Layer]] = []
        for layer in layers:
            if not groups or (layer.weight_bytes and any(x.weight_bytes for x in groups[-1])):
                groups.append([])
            groups[-1].append(layer)
        return cls(
            sum(layer.parameter_bytes for layer in layers),
            input_bytes,
            output_bytes,
            layers=tuple(map(_joined, groups)),
            untrained_bytes=sum(layer.untrained_bytes for layer in layers),
        )

    def can_have(self, stages: int) -> bool:
        """Whether the model has a layer with weights for each stage."""
        return not self.layers or stages <= len(self.layers)

    def stages(self, count: int) -> list[Layer]:
        """The stages: the layers are cut so that the largest stage has the fewest weights.

        Raises:
          ValueError: there are fewer layers with weights than stages.
        """
        if not self.layers:
            return [Layer(self.parameter_bytes / count, None, self.border_bytes)] * count
        stage_of_layer = cut([layer.weight_bytes for layer in self.layers], count)
        members: list[list[Layer]] = [[] for _ in range(count)]
        for layer, stage in zip(self.layers, stage_of_layer, strict=True):
            members[stage].append(layer)
        return [_joined(group) for group in members]


def _joined(layers: Sequence[Layer]) -> Layer:
    """The sizes of layers that follow each other."""
    return Layer(
        sum(layer.parameter_bytes for layer in layers),
        sum(layer.activation_bytes or 0 for layer in layers),
        layers[-1].border_bytes,
        sum(layer.untrained_bytes for layer in layers),
    )
