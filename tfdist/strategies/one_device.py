"""The `one_device` strategy: one process on its first GPU or on the CPU, without distribution."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.flags import JobFlags
from tfdist.runtime.devices import check_one_gpu, use_devices
from tfdist.strategies.base import DatasetFunction, Strategy, Topology


class OneDevice(Strategy):
    """Training without `tf.distribute`. The evaluator of every job also uses this class."""

    name = "one_device"

    def set_up(self, options: JobFlags) -> None:
        if not self._is_evaluator:  # An evaluator has the same flags as the training tasks.
            check_one_gpu(
                options.num_gpus, self.name, "Add --strategy=mirrored to train on all of them."
            )
        use_devices(options.num_gpus)
        self.tf_strategy = tf.distribute.get_strategy()

    @property
    def topology(self) -> Topology:
        own = str(self.task)
        return Topology(own, (own,), is_chief=not self._is_evaluator)

    @property
    def _is_evaluator(self) -> bool:
        return self.task.type == "evaluator"

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def wrap_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def distribute(self, dataset_fn: DatasetFunction, *, training: bool) -> tf.data.Dataset:
        return self.cursor.follow(dataset_fn(self.topology.input_context))

    def check(self, model: tf.keras.Model) -> None:
        """Accepts any model."""
