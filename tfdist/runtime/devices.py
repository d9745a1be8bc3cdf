"""The devices of this task: which GPUs it sees, and CPUs in their place.

devices = use_devices(num_gpus=None, num_cpu_devices=2)   # ['GPU:0', …] or ['CPU:0', 'CPU:1']
"""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.errors import UsageError


def use_devices(
    num_gpus: int | None,
    num_cpu_devices: int = 1,
    *,
    local_rank: int | None = None,
    place: tuple[int, int] = (0, 1),
) -> list[str]:
    """Makes this task's GPUs visible, or divides its CPU; returns the devices to compute on.

    Args:
      num_gpus: how many of the machine's GPUs; None for all, 0 for none.
      num_cpu_devices: logical devices that the CPU is divided into where no GPU is used.
      local_rank: which this process is of several on the machine that have a GPU each; None where
        it may have them all.
      place: which this process is of how many on the machine that divide its GPUs. They do not
        where CUDA_VISIBLE_DEVICES says which are this one's.

    Raises:
      UsageError: the machine has fewer GPUs, or both GPUs and logical CPU devices were asked for.
    """
    seen = gpus = tf.config.list_physical_devices("GPU")
    if num_gpus is not None and num_gpus > len(seen):
        raise UsageError(
            "--num_gpus",
            received=num_gpus,
            accepted=f"0 to {len(seen)} (TensorFlow sees {len(seen)} GPUs here)",
            remedy="Train on the CPU with --num_gpus=0, or fix the GPU driver.",
        )
    index, count = place
    if count > 1 and gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
        if len(gpus) < count:
            gpus = [gpus[index % len(gpus)]]
        else:
            gpus = gpus[index * len(gpus) // count : (index + 1) * len(gpus) // count]
    if local_rank is not None and gpus:
        # Before the number, which is one process's: with 1 all would have the first GPU.
        gpus = [gpus[local_rank % len(gpus)]]
    gpus = gpus[:num_gpus]
    if gpus != seen:
        tf.config.set_visible_devices(gpus, "GPU")
    if gpus:
        if num_cpu_devices > 1:
            raise UsageError(
                "--num_cpu_devices",
                received=num_cpu_devices,
                accepted="1 where GPUs are used",
                remedy="Add --num_gpus=0 to replicate over the CPU.",
            )
        return [f"GPU:{index}" for index in range(len(gpus))]
    if num_cpu_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_cpu_devices,
        )
    return [f"CPU:{index}" for index in range(num_cpu_devices)]


def check_one_gpu(num_gpus: int | None, strategy: str, remedy: str) -> None:
    """Raises UsageError where more GPUs are asked for than a process of `strategy` trains on."""
    if num_gpus is not None and num_gpus > 1:
        raise UsageError(
            "--num_gpus", received=num_gpus, accepted=f"0 or 1 under {strategy}", remedy=remedy
        )
