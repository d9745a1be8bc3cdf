"""Changes the number of steps per execution of a Keras 2 model during a training.

    with replaced.fitting():
        executions = Executions(model)
        model.fit(…)         # a callback calls executions.set_steps

Keras 2 has a variable for the number, but makes another train function for several steps, and each
of these steps computes the results of metrics over all replicas.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import at_end, replace
from tfdist.strategies.replicas import sync_on_read
from tfdist.upstream import keras_denominators


class Executions:
    """Sets the number of steps per execution of a compiled model that does not run eagerly.

    It does so until the training that has begun (`tfdist.compat.replaced`) ends.

    Only the last step of an execution computes the results of metrics over all replicas, which
    nothing else reads.
    """

    def __init__(self, model: tf.keras.Model) -> None:
        self._model = model
        make = model.make_train_function

        def make_train_function(force: bool = False) -> Any:
            if force or model.train_function is None:
                steps = int(model._steps_per_execution.numpy())
                # Keras makes another function for several steps.
                model._steps_per_execution.assign(1)
                model.train_function = self._several(make(force=True))
                model._steps_per_execution.assign(steps)
            return model.train_function

        replace(model, "make_train_function", make_train_function)
        replace(model, "train_function", None)
        at_end(partial(self.set_steps, 1))

    def set_steps(self, steps: int) -> None:
        """Sets the number of steps of the next executions; Keras makes the last one shorter."""
        self._model._steps_per_execution.assign(steps)

    def _several(self, single: Any) -> Any:
        step = single.python_function
        # A train step of the user may read the results.
        own = vars(self._model).get("train_step")
        is_of_keras = (own is None or keras_denominators.is_weighed(own)) and all(
            getattr(type(self._model), name) is getattr(tf.keras.Model, name)
            for name in ("train_step", "compute_loss")
        )

        @tf.function(reduce_retracing=True)
        def several(iterator: Any, steps: tf.Tensor) -> Any:
            for _ in tf.range(steps - 1):
                with sync_on_read.own_values(is_of_keras):
                    step(iterator)
            return step(iterator)

        def train_function(iterator: Any) -> Any:
            steps = self._model._steps_per_execution.numpy()
            return single(iterator) if steps == 1 else several(iterator, tf.constant(steps))

        return train_function


def is_chosen(model: tf.keras.Model) -> bool:
    """Whether `compile` was called with `steps_per_execution`."""
    config = getattr(model, "_compile_config", None)
    is_given = config is not None and config.config.get("steps_per_execution") is not None
    is_auto = bool(getattr(model, "autotune_steps_per_execution", False))
    return is_given or is_auto or int(model._steps_per_execution.numpy()) != 1


def acts_on_batches(callback: tf.keras.callbacks.Callback) -> bool:
    """Whether Keras calls a callback for each batch of a training."""
    return bool(callback._implements_train_batch_hooks())
