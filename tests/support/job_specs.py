"""Jobs of the launcher, by the flags of `tfdist run`."""

from __future__ import annotations

from typing import Any

from tfdist.cluster import task_types
from tfdist.cluster.task_counts import TaskCounts
from tfdist.tools.launch.job_spec import JobSpec


def job_spec(**given: Any) -> JobSpec:
    """A job of `train.py`: `job_spec(ps=1, workers=2, chief=True, args=("--epochs=3",))`."""
    kinds = task_types.by_flag()
    counts = {kinds[name].name: given.pop(name) for name in [*given] if name in kinds}
    numbers = TaskCounts(**{"worker": 1, **counts})
    return JobSpec(**{"python": "python", "script": "train.py", "counts": numbers, **given})
