"""Describes this machine for a bug report: processor, memory, limits, variables.

    facts = machine.facts(os.environ)        # {"machine": {"cpu": "AMD EPYC …", …}, …}

Nothing here imports TensorFlow, and no variable is read that may hold a secret.
"""

from __future__ import annotations

import platform
import resource
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from tfdist.process import setup
from tfdist.process.quantities import size

#: By name, what a person reads.
Facts = dict[str, str]

# The instruction sets that decide how fast TensorFlow computes.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked bytes": resource.RLIMIT_MEMLOCK,
    "bytes per file": resource.RLIMIT_FSIZE,
}
_VARIABLES = ("CUDA_", "GRPC_", "HOROVOD_", "KERAS_", "KMP_", "NCCL_", "OMP_", "TF_", "TFDIST_")
_SECRETS = ("KEY", "PASSWORD", "SECRET", "TOKEN")
_SHARED_MEMORY = "/dev/shm"


def facts(environ: Mapping[str, str]) -> dict[str, Facts]:
    """What is known of this machine and of this process, by section.

    Args:
      environ: the environment of this process.
    """
    cpu = setup.cpu_info()
    memory = psutil.virtual_memory()
    has_shared_memory = Path(_SHARED_MEMORY).is_dir()
    return {
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "cpu": cpu.get("model name", platform.machine()),
            "instructions": " ".join(each for each in _INSTRUCTIONS if each in setup.cpu_flags()),
            "threads": setup.description(environ),
            "memory": f"{size(memory.total)}, {size(memory.available)} available",
            _SHARED_MEMORY: f"{size(shutil.disk_usage(_SHARED_MEMORY).free)} free"
            if has_shared_memory
            else "none",
            "NVIDIA GPUs": str(len(list(Path("/dev").glob("nvidia[0-9]*")))),
        },
        "limits": {name: _limit(which) for name, which in _LIMITS.items()},
        "variables": {
            name: value
            for name, value in sorted(environ.items())
            if name.startswith(_VARIABLES) and not any(secret in name for secret in _SECRETS)
        },
    }


def _limit(which: int) -> str:
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
