"""The NVIDIA GPUs of this machine, found without TensorFlow and without initializing CUDA.

if gpus.exist() and gpus.may_be_used(): ...
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_DEVICES = Path("/dev")


def exist(devices: Path = _DEVICES) -> bool:
    """Whether Linux has device files of NVIDIA GPUs.

    Args:
      devices: the directory of the device files.
    """
    return any(devices.glob("nvidia[0-9]*"))


def may_be_used(environ: Mapping[str, str] = os.environ, devices: Path = _DEVICES) -> bool:
    """Whether this process can find a GPU, as far as is known without CUDA.

    Args:
      environ: the environment, for CUDA_VISIBLE_DEVICES.
      devices: the directory of the device files.
    """
    if environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return False
    # In WSL all GPUs share one device file.
    return exist(devices) or (devices / "dxg").exists()
