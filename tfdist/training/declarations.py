"""Describes what must be the same in all tasks of a training, for `Agreement.check`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data import inputs
from tfdist.data.inputs import Data
from tfdist.strategies.replicas import sync_on_read
from tfdist.upstream import dataset_inputs

#: The remedy if the tasks do not have the same data.
SAME_DATA = (
    "Give every task the same data: the same script, flags and files, and a seed for what the "
    "script itself shuffles."
)


def of_data(data: Data, shard: tf.data.Dataset) -> dict[str, str]:
    """Declares the training data.

    Args:
      data: what the user has passed.
      shard: this task's shard of it.
    """
    specs = [
        f"{spec.dtype.name} of rank {spec.shape.rank}"
        for spec in tf.nest.flatten(shard.element_spec)
        if isinstance(spec, tf.TensorSpec)
    ]
    declared = {"the type of the training data": ", ".join(specs)}
    # The tasks share a whole dataset by the numbers of its batches.
    if inputs.is_whole(data):
        declared["the batch size"] = str(dataset_inputs.batch_size(shard))
        declared["the order of the training data"] = dataset_inputs.digest(shard)
    return declared


def of_fit(model: tf.keras.Model, params: dict[str, Any], save_steps: int | None) -> dict[str, str]:
    """Declares a call of `fit`.

    Args:
      model: the compiled model, built if its inputs are known.
      params: what Keras tells its callbacks.
      save_steps: the steps between two checkpoints.
    """
    declared = {
        "epochs": str(params["epochs"]),
        "the number of steps per epoch": str(params["steps"]),
        "save_steps": str(save_steps),
    }
    # The other tasks may not read the variables at the same time.
    with sync_on_read.own_values(True):
        for number, optimizer in enumerate(keras_compat.optimizers_of(model), 1):
            declared[f"optimizer {number}"] = type(optimizer).__name__
        for name, value in keras_compat.hyperparameters(model).items():
            declared[f"the hyperparameter {name}"] = f"{value.numpy():g}"
        variables = keras_compat.model_variables(model) if model.built else []
        for number, variable in enumerate(variables, 1):
            # Keras numbers the names of layers, which may differ.
            kind = f"{tf.as_dtype(variable.dtype).name} of shape {variable.shape}"
            declared[f"variable {number} of the model ({variable.name})"] = kind
    return declared
