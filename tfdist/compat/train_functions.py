"""Keras's train function, with something to do before or in place of the first steps.

    model.train_function = after_building_metrics(model)    # when `fit` has begun
    model.train_function = after_skipping(model, 30)

Each puts back what was there when it has done its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat


def after_building_metrics(model: tf.keras.Model) -> Callable[[Any], Any]:
    """Keras 2's train function, before whose first call its metrics have variables.

    It makes them in the first step, and a step that makes variables is traced twice.
    """
    train = model.train_function

    def build_and_train(iterator: Any) -> Any:
        _build_metrics(model, getattr(iterator, "element_spec", None))
        if model.train_function is build_and_train:  # And not called by another one of these.
            model.train_function = train
        return train(iterator)

    return build_and_train


def _build_metrics(model: tf.keras.Model, element_spec: Any) -> None:
    """As the first step would; does nothing where that may be another than Keras's own."""
    is_own = type(model).__module__.startswith(tuple(f"{name}." for name in keras_compat.PACKAGES))
    if not is_own or {"train_step", "compute_metrics"} & {*vars(model)}:
        return
    metrics = model.compiled_metrics
    if metrics is None or metrics.built or len(model.outputs or ()) != 1:
        return
    of_a_replica = tf.nest.map_structure(
        # As the `PerReplicaSpec` of a distributed iterator has it.
        lambda spec: getattr(spec, "_value_specs", (spec,))[0],
        element_spec,
    )
    inputs, targets, _ = tf.keras.utils.unpack_x_y_sample_weight(of_a_replica)
    outputs = model.output
    # Which function `accuracy` stands for depends on the shapes that the step will see.
    if all(map(_is_known, (*tf.nest.flatten(inputs), targets, outputs))) and outputs.shape.rank > 1:
        with model.distribute_strategy.scope():
            metrics.build(outputs, targets)


def _is_known(spec: Any) -> bool:
    """Whether it is of one tensor whose shape is known but for the batch."""
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank is not None and shape[1:].is_fully_defined()


def after_skipping(model: tf.keras.Model, steps: int) -> Callable[[Any], Any]:
    """Keras's train function, whose first call reads over what so many steps have read."""
    train = model.train_function

    @tf.function
    def skip(iterator: Any) -> None:
        next(iterator)

    def train_after_skipping(iterator: Any) -> Any:
        for _ in range(steps):
            skip(iterator)
        model.train_function = train
        return train(iterator)

    return train_after_skipping


class AfterPassingOver:
    """The train function, which does nothing in its first calls: so many of Keras 3's."""

    def __init__(self, model: tf.keras.Model, executions: int) -> None:
        self._model = model
        self._train = model.train_function
        self._left = executions

    def __call__(self, iterator: Any) -> Any:
        if self._left:
            self._left -= 1
            return {}
        self._model.train_function = self._train
        return self._train(iterator)


def has_passed_over(model: tf.keras.Model) -> bool:
    """Whether the step that has just ended was made before, and only seemed to be made."""
    return isinstance(model.train_function, AfterPassingOver)


def reading(
    model: tf.keras.Model, dataset: tf.data.Dataset, batches_per_step: int
) -> Callable[[Any], Any]:
    """Keras's train function, which reads this dataset in the place of the first epoch's."""
    train, own_iterator = model.train_function, iter(dataset)
    replaced: Any = None

    def train_on_dataset(iterator: Any) -> Any:
        nonlocal replaced
        # Keras has a new iterator for each epoch.
        if replaced is None:
            replaced = iterator
        elif iterator is not replaced:
            model.train_function = train
            return train(iterator)
        for _ in range(batches_per_step):
            logs = train(own_iterator)
        return logs

    return train_on_dataset
