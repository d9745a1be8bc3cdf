"""Selects the devices of this task: its visible GPUs, or logical CPU devices.

devices = use_devices(num_gpus=None, num_cpu_devices=2)   # ['GPU:0', …] or ['CPU:0', 'CPU:1']
"""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.errors import UsageError, log
from tfdist.process import gpus as gpu_files


def use_devices(
    num_gpus: int | None,
    num_cpu_devices: int = 1,
    *,
    local_rank: int | None = None,
    place: tuple[int, int] = (0, 1),
) -> list[str]:
    """Makes this task's GPUs visible, or creates logical CPU devices.

    Args:
      num_gpus: the number of GPUs to use; None for all, 0 for none.
      num_cpu_devices: the number of logical CPU devices if no GPU is used.
      local_rank: the index of this process among the processes of the machine that use one GPU
        each; None if this process may use all GPUs.
      place: the index of this process, and the number of processes that divide the machine's GPUs.
        They are not divided if CUDA_VISIBLE_DEVICES is set.

    Returns:
      The names of the devices to compute on.

    Raises:
      UsageError: the machine has fewer GPUs, or there are both GPUs and several CPU devices.
    """
    all_gpus = gpus = tf.config.list_physical_devices("GPU")
    if num_gpus is not None and num_gpus > len(all_gpus):
        raise UsageError(
            "--num_gpus",
            received=num_gpus,
            accepted=f"0 to {len(all_gpus)} (TensorFlow sees {len(all_gpus)} GPUs here)",
            remedy="Train on the CPU with --num_gpus=0, or fix the GPU driver.",
        )
    if not all_gpus and num_gpus is None and gpu_files.exist() and gpu_files.may_be_used():
        # TensorFlow's own warning is below its log level.
        log(
            "warning: TensorFlow finds no GPU, but this machine has NVIDIA GPUs. --verbosity=0 "
            "shows why. --num_gpus=0 trains on the CPU without this warning."
        )
    index, count = place
    if count > 1 and gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
        if len(gpus) < count:
            gpus = [gpus[index % len(gpus)]]
        else:
            gpus = gpus[index * len(gpus) // count : (index + 1) * len(gpus) // count]
    if local_rank is not None and gpus:
        # Before `num_gpus` applies: with 1, all processes would use the first GPU.
        gpus = [gpus[local_rank % len(gpus)]]
    gpus = gpus[:num_gpus]
    if gpus != all_gpus:
        tf.config.set_visible_devices(gpus, "GPU")
    if gpus:
        if num_cpu_devices > 1:
            raise UsageError(
                "--num_cpu_devices",
                received=num_cpu_devices,
                accepted="1 on a machine with GPUs",
                remedy="Add --num_gpus=0 to replicate over the CPU.",
            )
        return [f"GPU:{index}" for index in range(len(gpus))]
    if num_cpu_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_cpu_devices,
        )
    return [f"CPU:{index}" for index in range(num_cpu_devices)]
