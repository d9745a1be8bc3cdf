"""What this machine is, for a bug report: processor, memory, network, limits, variables.

    facts = machine.facts(os.environ)        # {"machine": {"cpu": "AMD EPYC …", …}, …}

Nothing here imports TensorFlow, and no variable is read that may hold a secret.
"""

from __future__ import annotations

import platform
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from tfdist.process import setup

#: By name, what a person reads.
Facts = dict[str, str]

# The instruction sets that decide how fast TensorFlow computes.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "file size": resource.RLIMIT_FSIZE,
}
_IN_BYTES = ("locked memory", "file size")
_VARIABLES = ("CUDA_", "GRPC_", "HOROVOD_", "KERAS_", "KMP_", "NCCL_", "OMP_", "TF_", "TFDIST_")
_SECRETS = ("KEY", "PASSWORD", "SECRET", "TOKEN")
_GIB = 2**30


def facts(environ: Mapping[str, str]) -> dict[str, Facts]:
    """What is known of this machine and of this process, by section.

    Args:
      environ: the environment of this process.
    """
    return {
        "machine": _machine(environ),
        "network": _network(),
        "limits": _limits(),
        "variables": _variables(environ),
    }


def _machine(environ: Mapping[str, str]) -> Facts:
    known = setup.cpu_flags()
    memory = psutil.virtual_memory()
    return {
        "system": platform.platform(),
        "cpu": _cpu(),
        "instructions": " ".join(name for name in _INSTRUCTIONS if name in known) or "unknown",
        "threads": setup.description(environ),
        "memory": f"{memory.total / _GIB:.1f} GiB, {memory.available / _GIB:.1f} GiB available",
        "/dev/shm": _free("/dev/shm"),
        "GPUs": _gpus(),
    }


def _cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _free(directory: str) -> str:
    try:
        usage = psutil.disk_usage(directory)
    except OSError as error:
        return error.strerror or str(error)
    return f"{usage.total / _GIB:.1f} GiB, {usage.free / _GIB:.1f} GiB free"


def _gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The names that NVIDIA's driver gives; TensorFlow may use fewer GPUs."""
    models = []
    for path in sorted(root.glob("*/information")):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        models.append(fields.get("Model", "unknown").strip())
    return ", ".join(models) or "none"


def _network() -> Facts:
    """The addresses, the state and the speed of each network interface."""
    states = psutil.net_if_stats()
    found = {"host": socket.gethostname()}
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        internet = (socket.AF_INET, socket.AF_INET6)
        ips = [each.address for each in addresses if each.family in internet]
        state = states.get(name)
        words = [" ".join(ips) or "no address"]
        if state:
            words += ["up" if state.isup else "down", f"mtu {state.mtu}"]
            words += [f"{state.speed} Mbit/s"] if state.speed else []
        found[name] = ", ".join(words)
    return found


def _limits() -> Facts:
    return {
        name: _limit(resource.getrlimit(which)[0], in_bytes=name in _IN_BYTES)
        for name, which in _LIMITS.items()
    }


def _limit(value: int, *, in_bytes: bool) -> str:
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{value / 2**20:.1f} MiB" if in_bytes else str(value)


def _variables(environ: Mapping[str, str]) -> Facts:
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_VARIABLES) and not any(secret in name for secret in _SECRETS)
    }
