"""Gives the checkpoint of a model with split variables the layout of the same model without them.

    whole = WholeLayout(model, placement)
    tf.train.Checkpoint(model=model, variables=whole.variables())

TensorFlow saves a `ShardedVariable` as one tensor, and reads only the slices that its parts need.
But an optimizer has a slot for each part, and saves the slots one by one, by their index. Here, the
slots of all parts of a variable are one `ShardedVariable`, too. So a checkpoint fits any number of
parts and of parameter servers, and one process without any. The optimizers of tf_keras do the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replace
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.variables.placement import Placement
from tfdist.upstream.checkpoint_graph import ShardedVariable


class WholeLayout:
    """The layout of a built model and its built optimizer.

    Keep the object as long as the checkpoint is used, which is at most until `fit` ends.

    Args:
      model: the model, some of whose variables may be split.
      placement: knows the slots of each variable.

    Raises:
      UsageError: the optimizer has slots that cannot be put together.
    """

    def __init__(self, model: tf.keras.Model, placement: Placement) -> None:
        self._model = model
        self._placement = placement
        # By `id` of a part or of its slot.
        self._wholes: dict[int, Any] = {}
        found = filter(None, map(_whole_of, keras_compat.model_variables(model)))
        for whole in {id(each): each for each in found}.values():
            self._wholes.update(dict.fromkeys(map(id, whole.variables), whole))
            self._put_slots_together(whole)
        if self._wholes:
            for optimizer in keras_compat.optimizers_of(model):
                # TensorFlow does not track those in a MultiOptimizer.
                for each in [optimizer, *keras_compat.inner_optimizers(optimizer)]:
                    for tracked in tf.train.TrackableView(each).descendants():
                        if isinstance(tracked, list):
                            self._make_whole(tracked)

    def variables(self) -> list[Any]:
        """The model's variables as `tf.Variable`; a `ShardedVariable` in place of its parts."""
        found = map(self._whole, keras_compat.model_variables(self._model))
        return list({id(each): each for each in found}.values())

    def _put_slots_together(self, whole: Any) -> None:
        by_part = [self._placement.slots_of(part) for part in whole.variables]
        counts = {len(slots) for slots in by_part}
        # The slots do not exist yet if the optimizer is not built.
        if counts == {0}:
            return
        fits = len(counts) == 1 and all(
            slot.shape == part.shape
            for part, slots in zip(whole.variables, by_part, strict=True)
            for slot in slots
        )
        if not fits:
            raise UsageError(
                "optimizer",
                received=", ".join(
                    type(each).__name__ for each in keras_compat.optimizers_of(self._model)
                ),
                accepted="an optimizer whose slots have the shape of their variables, with "
                "--partition_bytes or --variable_partitions",
                remedy="Choose another optimizer, such as Adam, or leave the flag out.",
            )
        for slots in zip(*by_part, strict=True):
            # Another checkpoint of the same model has put them together.
            slot_whole = _whole_of(slots[0]) or ShardedVariable(list(slots), name=slots[0].name)
            self._wholes.update(dict.fromkeys(map(id, slots), slot_whole))

    def _make_whole(self, listed: Any) -> None:
        """Makes a tracked list save a `ShardedVariable` in place of each group of parts."""
        own = type(listed)._trackable_children

        def children(save_type: str = "checkpoint", **kwargs: Any) -> Mapping[str, Any]:
            found = own(listed, save_type, **kwargs)
            if save_type != "checkpoint":
                return dict(found)
            dropped, seen, result = 0, set(), {}
            for name, child in found.items():
                whole = self._whole(child)
                if whole is not child and id(whole) in seen:
                    dropped += 1
                    continue
                seen.add(id(whole))
                result[str(int(name) - dropped)] = whole
            return result

        replace(listed, "_trackable_children", children)

    def _whole(self, variable: Any) -> Any:
        """The `ShardedVariable` of a part or of its slot; any other variable itself."""
        (own,) = keras_compat.as_tensorflow([variable])
        return self._wholes.get(id(own), variable)


def _whole_of(variable: Any) -> Any:
    """The `ShardedVariable` of a part; None for other variables."""
    container = getattr(variable, "_sharded_container", None)
    return container() if container is not None else None
