"""Builds Keras 3 models by the specification of a batch, where Keras would read one.

Under a strategy, Keras's `fit` reads a batch to build the model and its metrics, and then begins
the data again. So a dataset that shuffles has the order of its second reading in the first epoch,
and that of its first reading in one process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Gives Keras the shapes and dtypes of a batch of the first replica."""
    trainers: Any = importlib.import_module("keras.src.backend.tensorflow.trainer")

    def build(
        own: Callable[..., None], model: Any, iterator: Any = None, data_batch: Any = None
    ) -> None:
        if iterator is not None:
            spec = iterator._distributed_dataset.element_spec
            data_batch = tf.nest.map_structure(_of_first_replica, spec)
        own(model, None, data_batch)

    apply_wrapper(trainers.TensorFlowTrainer, "_maybe_symbolic_build", build)


def _of_first_replica(spec: Any) -> Any:
    return getattr(spec, "_value_specs", [spec])[0]
