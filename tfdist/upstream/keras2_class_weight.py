"""Makes `fit` of Keras 2 use `class_weight` with parameter servers.

    keras2_class_weight.apply()

Under ParameterServerStrategy, Keras 2 ignores the argument without any warning
(`_ClusterCoordinatorDataHandler` in its `data_adapter.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes the data handler of Keras 2 for parameter servers; for datasets only."""
    package = tf.keras.Model.__module__.rpartition(".")[0]
    data_adapter: Any = sys.modules[f"{package}.data_adapter"]

    def with_class_weight(
        configure: Callable[..., None],
        handler: Any,
        strategy: Any,
        x: Any,
        steps_per_epoch: Any,
        class_weight: Any,
        distribute: bool,
    ) -> None:
        if class_weight and isinstance(x, tf.data.Dataset):
            x = x.map(data_adapter._make_class_weight_map_fn(class_weight))
        configure(handler, strategy, x, steps_per_epoch, class_weight, distribute)

    handlers = data_adapter._ClusterCoordinatorDataHandler
    apply_wrapper(handlers, "_configure_dataset_and_inferred_steps", with_class_weight)
