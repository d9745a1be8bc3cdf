"""Reads the cluster and this task from flags, TF_CONFIG or `horovodrun`.

    config = discover(flags=ClusterFlags(), environ=os.environ)
    config.cluster, config.task, config.source

There is one function per source. The first source that describes a job is used, in this order:
command-line flags, `TF_CONFIG`, the environment variables of `horovodrun`. Without any, the job is
this process alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from tfdist.cluster.spec import JOB_NAMES, TASK_TYPES, Cluster, Task
from tfdist.errors import UsageError

_DYNAMIC_WORKER = "In a TFJob of Kubeflow, set enableDynamicWorker to false."


@dataclass(frozen=True)
class ClusterFlags:
    """The cluster flags of a training script, as text; None for a flag that was not given."""

    job_name: str | None = None
    task_index: str | None = None
    chief_hosts: str | None = None
    worker_hosts: str | None = None
    ps_hosts: str | None = None


@dataclass(frozen=True)
class ClusterConfig:
    """The cluster, this task, and their source.

    Attributes:
      cluster: the cluster; empty for a single process, and under `horovodrun`, where Horovod
        manages the addresses.
      task: this task; under `horovodrun` its index is the rank.
      source: `flags`, `TF_CONFIG`, `horovodrun` or `default`.
      has_master: whether TF_CONFIG calls the chief `master`, as in its older dialect.
      model_dir: TF_CONFIG's `model_dir`; None if it has none.
      ranks: the number of ranks under `horovodrun`; None if it is unknown.
    """

    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=lambda: Task("worker", 0))
    source: str = "default"
    has_master: bool = False
    model_dir: str | None = None
    ranks: int | None = None

    def __str__(self) -> str:
        """This task and its job, for the first line of the log."""
        job = self.cluster if self.ranks is None else f"{self.ranks} ranks"
        return f"{self.task} of {job} ({self.source})"


def discover(flags: ClusterFlags, environ: Mapping[str, str]) -> ClusterConfig:
    """Reads the cluster and this task from the first source that describes a job.

    Raises:
      UsageError: this source is invalid. Later sources are not tried, so a mistake never starts a
        job of one process.
    """
    return (
        from_flags(flags) or from_tf_config(environ) or from_horovodrun(environ) or ClusterConfig()
    )


def from_flags(flags: ClusterFlags) -> ClusterConfig | None:
    """Reads `--job_name`, `--task_index` and `--*_hosts`; None if none of them was given."""
    if flags == ClusterFlags():
        return None
    if not flags.job_name:
        raise UsageError(
            "--job_name",
            received=flags.job_name,
            accepted=", ".join(TASK_TYPES),
            remedy="Pass the type of this task.",
        )
    if not flags.task_index:
        raise UsageError(
            "--task_index",
            received=flags.task_index,
            accepted="an integer of at least 0",
            remedy="Pass the index of this task.",
        )
    hosts = {name: _split_hosts(getattr(flags, f"{name}_hosts")) for name in JOB_NAMES}

    def flag_of(name: str) -> str:
        name = re.sub(r"^cluster\.(\w+)", r"--\1_hosts", name)
        return {"task.type": "--job_name", "task.index": "--task_index"}.get(name, name)

    return _checked("flags", flag_of, hosts, flags.job_name, flags.task_index)


def from_tf_config(environ: Mapping[str, str]) -> ClusterConfig | None:
    """Reads TF_CONFIG, in TF2's dialect or the older one; None if it is not set.

    The older dialect calls the chief `master`. `model_dir` is an Estimator's output directory.
    `environment` and other keys are ignored, and so is an evaluator in the cluster, as Kubeflow
    writes it. The addresses of a task type are a list, or a map from each index to its address. See
    `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UsageError(
            "TF_CONFIG",
            received=_shortened(text),
            accepted='JSON: {"cluster": {"worker": ["host:port", …]}, "task": {"type": …, …}}',
            remedy=f"Correct the JSON at character {error.pos}: {error.msg}.",
        ) from None
    config = _mapping("TF_CONFIG", config)
    cluster = _mapping("TF_CONFIG cluster", config.get("cluster"))
    jobs = {
        name: _listed(name, addresses) if isinstance(addresses, dict) else addresses
        for name, addresses in cluster.items()
        if name != "evaluator"
    }
    tasks = [address for job in jobs.values() if isinstance(job, list) for address in job]
    if isinstance(cluster.get("worker"), dict) and len(tasks) == 1:
        # Worker 0 would train alone, while the other workers are refused.
        raise UsageError(
            "TF_CONFIG cluster",
            received=cluster,
            accepted="the addresses of all tasks; those of a single worker only as a list",
            remedy=_DYNAMIC_WORKER,
        )
    task = _mapping("TF_CONFIG task", config.get("task"))
    has_master = "master" in jobs
    if has_master:
        if "chief" in jobs:
            raise UsageError(
                "TF_CONFIG cluster",
                received=sorted(jobs),
                accepted="either chief or master",
                remedy="Keep chief, because master is its older name.",
            )
        jobs["chief"] = jobs.pop("master")
    if not any(jobs.values()):
        raise UsageError(
            "TF_CONFIG cluster",
            received=cluster,
            accepted="at least one address of a chief or worker",
            remedy="List the tasks, or unset TF_CONFIG to train in a single process.",
        )
    for name in jobs:
        if name not in JOB_NAMES:
            raise UsageError(
                "TF_CONFIG cluster",
                received=name,
                accepted=", ".join([*JOB_NAMES, "master"]),
                remedy="Rename this task type.",
            )
    for key, accepted in (("type", ", ".join(TASK_TYPES)), ("index", "an integer of at least 0")):
        if task.get(key) is None:
            raise UsageError(
                f"TF_CONFIG task.{key}",
                received=None,
                accepted=accepted,
                remedy="Add the type and the index of this task.",
            )
    cluster_config = _checked(
        "TF_CONFIG", lambda name: f"TF_CONFIG {name}", jobs, task["type"], task["index"]
    )
    return replace(cluster_config, has_master=has_master, model_dir=_model_dir(config))


def from_horovodrun(environ: Mapping[str, str]) -> ClusterConfig | None:
    """Reads this process's rank under `horovodrun`; None if that did not start the process."""
    rank = environ.get("HOROVOD_RANK")
    if rank is None:
        return None
    number = _whole_number(rank)
    if not isinstance(number, int) or number < 0:
        raise UsageError(
            "HOROVOD_RANK",
            received=rank,
            accepted="an integer of at least 0",
            remedy="Start the script with horovodrun, or unset the variable.",
        )
    size = _whole_number(environ.get("HOROVOD_SIZE"))
    ranks = size if isinstance(size, int) else None
    return ClusterConfig(Cluster(), Task("worker", number), "horovodrun", ranks=ranks)


def _checked(
    source: str,
    field_of: Callable[[str], str],
    jobs: Mapping[str, Any],
    task_type: object,
    task_index: object,
) -> ClusterConfig:
    """Builds and checks the cluster and the task; errors use the source's field names."""
    try:
        cluster = Cluster(**{name: jobs.get(name) or () for name in JOB_NAMES})
        task_type = "chief" if task_type == "master" else task_type
        task = Task(task_type, _whole_number(task_index))  # type: ignore[arg-type]
        cluster.check(task)
    except UsageError as error:
        raise UsageError(
            field_of(error.field),
            received=error.received,
            accepted=error.accepted,
            remedy=error.remedy,
        ) from None
    return ClusterConfig(cluster, task, source)


def _model_dir(config: Mapping[str, Any]) -> str | None:
    model_dir = config.get("model_dir")
    if model_dir is not None and not (isinstance(model_dir, str) and model_dir):
        raise UsageError(
            "TF_CONFIG model_dir",
            received=model_dir,
            accepted="the path of the directory that all tasks share",
            remedy="Correct the path, or leave it out.",
        )
    return model_dir


def _whole_number(value: Any) -> Any:
    """Converts a string of digits to an int; returns other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value.strip()):
        return int(value)
    return value


def _split_hosts(hosts: str | None) -> tuple[str, ...]:
    return tuple(host.strip() for host in hosts.split(",")) if hosts else ()


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(
            name,
            received=value,
            accepted="a JSON object",
            remedy='Write {"cluster": {…}, "task": {…}}, '
            "or unset TF_CONFIG to train in a single process.",
        )
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; `json` keeps only the last value of a repeated key."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise UsageError(
                "TF_CONFIG",
                received=[name for name, _ in pairs],
                accepted="each key of a JSON object once",
                remedy=f"Remove or rename one {key!r}.",
            )
        result[key] = value
    return result


def _listed(name: str, addresses: Mapping[str, Any]) -> list[Any]:
    """The addresses of a map from indices, as `tf.train.ClusterSpec` accepts it.

    Kubeflow's `enableDynamicWorker` writes a map that leaves tasks out: a worker sees itself and
    the ps; a ps sees only itself; the other tasks see nothing.
    """
    field_name = f"TF_CONFIG cluster.{name}"
    for key in addresses:
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            raise UsageError(
                field_name,
                received=key,
                accepted="a list of host:port, or a map from the indices 0, 1, … to host:port",
                remedy="Use the index of the task as the key.",
            )
    indices = sorted(map(int, addresses))
    gaps = [(last + 1, index - 1) for last, index in pairwise([-1, *indices]) if index > last + 1]
    if not indices:
        gaps = [(0, 0)]
    if gaps:
        missing = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps)
        raise UsageError(
            field_name,
            received=dict(addresses),
            accepted="an address for each index from 0",
            remedy=f"Add {name} {missing}: each task needs all addresses. {_DYNAMIC_WORKER}",
        )
    return [addresses[str(index)] for index in indices]


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "…"
