"""Trains three layers of 4 MiB; the chief prints the packs in which it sends their gradients."""

from __future__ import annotations

import tfdist  # isort: skip

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

OUTPUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
UNITS = 1025


def count_packs(name: str) -> list[int]:
    """A list that gets the number of tensors of each pack with the gradient of a layer."""
    packs: list[int] = []
    if name == "horovod":
        hvd: Any = sys.modules["horovod.tensorflow"]
        sum_pack = hvd.grouped_allreduce

        def grouped_allreduce(tensors: Sequence[Any], **arguments: Any) -> Any:
            packs.extend(map(len, of_layers([tensors])))
            return sum_pack(tensors, **arguments)

        hvd.grouped_allreduce = grouped_allreduce
    else:
        sum_all = CollectiveReplicaLauncher.batch_all_reduce

        def batch_all_reduce(self: Any, tensors: Any, options: Any = None) -> Any:
            packs.extend(map(len, of_layers(tensors)))
            return sum_all(self, tensors, options)

        CollectiveReplicaLauncher.batch_all_reduce = batch_all_reduce
    return packs


def of_layers(packs: Sequence[Sequence[tf.Tensor]]) -> list[Sequence[tf.Tensor]]:
    return [pack for pack in packs if any(tensor.shape == [UNITS, UNITS] for tensor in pack)]


def build_model() -> tf.keras.Model:
    layers = [tf.keras.layers.Dense(UNITS) for _ in range(3)]
    model = tf.keras.Sequential([tf.keras.Input([UNITS]), *layers])
    model.compile(tf.keras.optimizers.SGD(1e-6), "mse")
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    packs = count_packs(job.name)
    data = np.ones([4, UNITS], np.float32)
    job.fit(build_model, (data, data), epochs=1, output_dir=OUTPUT.value, verbose=0)
    if job.is_chief:
        print(f"packs: {packs}", flush=True)


if __name__ == "__main__":
    tfdist.run(main)
