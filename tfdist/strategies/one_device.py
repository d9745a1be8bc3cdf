"""`one_device`: no distribution; one process, on its first GPU or on the CPU."""

from __future__ import annotations

import tensorflow as tf

from tfdist.flags import JobFlags
from tfdist.strategies.base import DatasetFunction, Job
from tfdist.strategies.devices import check_one_gpu, use_devices
from tfdist.strategies.sessions import TakesSessions


class OneDevice(TakesSessions, Job):
    """Training without `tf.distribute`; also what an evaluator is, whatever the job."""

    name = "one_device"

    def _set_up(self, options: JobFlags) -> None:
        if not self.evaluates:  # Its flags are those of the tasks that train.
            check_one_gpu(
                options.num_gpus, self.name, "Add --strategy=mirrored to train on all of them."
            )
        use_devices(options.num_gpus)
        self.strategy = tf.distribute.get_strategy()

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        return self._remembered(dataset_fn(tf.distribute.InputContext()))
