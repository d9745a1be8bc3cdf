"""The strategies by name: one small module each, imported when it is chosen.

job_class = load("multi_worker_mirrored")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tfdist.cluster import Cluster
from tfdist.errors import UsageError

if TYPE_CHECKING:
    from tfdist.strategies.base import Job

_CLASSES = {
    "one_device": "OneDevice",
    "mirrored": "Mirrored",
    "central_storage": "CentralStorage",
    "parameter_server": "ParameterServer",
    "multi_worker_mirrored": "MultiWorkerMirrored",
    "horovod": "Horovod",
}
NAMES = tuple(_CLASSES)


def choose(cluster: Cluster, source: str) -> str:
    """The strategy of a job that names none, from the shape of its cluster."""
    if source == "horovodrun":
        return "horovod"
    if cluster.ps:
        return "parameter_server"
    return "multi_worker_mirrored" if len(cluster.trainers) > 1 else "one_device"


def load(name: str) -> type[Job]:
    """The class of the strategy `name`.

    Raises:
      UsageError: there is no strategy of that name.
    """
    if name not in _CLASSES:
        raise UsageError(
            "--strategy",
            received=name,
            accepted=", ".join(["auto", *NAMES]),
            remedy="Choose one of these.",
        )
    job_class: type[Job] = getattr(
        importlib.import_module(f"tfdist.strategies.{name}"), _CLASSES[name]
    )
    return job_class
