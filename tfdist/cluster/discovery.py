"""Where a job's cluster is read from: one function a source, one order of precedence.

    found = discover(flags=ClusterFlags(), environ=os.environ)
    found.cluster, found.task, found.source

The order: command-line flags, `TF_CONFIG`, the environment that `horovodrun` sets, and else this
process alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfdist.cluster.spec import JOB_NAMES, TASK_TYPES, Cluster, Task
from tfdist.errors import UsageError


@dataclass(frozen=True)
class ClusterFlags:
    """The per-node flags of a training script, as given; None where a flag was not given."""

    job_name: str | None = None
    task_index: str | None = None
    chief_hosts: str | None = None
    worker_hosts: str | None = None
    ps_hosts: str | None = None


@dataclass(frozen=True)
class ClusterConfig:
    """What was found: the cluster (empty for one process), this task, and where it was read.

    `source` is `flags`, `TF_CONFIG`, `horovodrun` or `default`. Under `horovodrun` the addresses
    are Horovod's own affair, so the cluster is empty and the task's index is the rank. `has_master`
    says that the chief is called `master`, as in the older dialect; `model_dir` is TF_CONFIG's.
    """

    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=lambda: Task("worker", 0))
    source: str = "default"
    has_master: bool = False
    model_dir: str | None = None


def discover(flags: ClusterFlags, environ: Mapping[str, str]) -> ClusterConfig:
    """Reads the job from the first source that describes one.

    Raises:
      UsageError: the first source that says anything says something wrong; later ones are not
        looked at, so a mistake never ends as a job of one process.
    """
    return (
        from_flags(flags) or from_tf_config(environ) or from_horovodrun(environ) or ClusterConfig()
    )


def from_flags(flags: ClusterFlags) -> ClusterConfig | None:
    """The job that `--job_name --task_index --*_hosts` describe; None where none was given."""
    if flags == ClusterFlags():
        return None
    if not flags.job_name:
        raise UsageError(
            "--job_name",
            received=flags.job_name,
            accepted=", ".join(TASK_TYPES),
            remedy="Say which job this process belongs to.",
        )
    if not flags.task_index:
        raise UsageError(
            "--task_index",
            received=flags.task_index,
            accepted="a whole number from 0",
            remedy="Say which task of the job this process is.",
        )
    hosts = {name: _split_hosts(getattr(flags, f"{name}_hosts")) for name in JOB_NAMES}

    def flag_of(name: str) -> str:
        name = re.sub(r"^cluster\.(\w+)", r"--\1_hosts", name)
        return {"task.type": "--job_name", "task.index": "--task_index"}.get(name, name)

    return _checked("flags", flag_of, hosts, flags.job_name, flags.task_index)


def from_tf_config(environ: Mapping[str, str]) -> ClusterConfig | None:
    """The job that TF_CONFIG describes, in TF2's dialect or the older one; None where unset.

    The older dialect calls the chief `master`. `model_dir` is an Estimator's output directory;
    `environment` and other keys change nothing and are accepted. See
    `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            "TF_CONFIG",
            received=_shortened(text),
            accepted='JSON: {"cluster": {"worker": ["host:port", …]}, "task": {"type": …, …}}',
            remedy=f"Correct the JSON at character {error.pos}: {error.msg}.",
        ) from None
    config = _mapping("TF_CONFIG", config)
    jobs = dict(_mapping("TF_CONFIG cluster", config.get("cluster")))
    task = _mapping("TF_CONFIG task", config.get("task"))
    has_master = "master" in jobs
    if has_master:
        if "chief" in jobs:
            raise UsageError(
                "TF_CONFIG cluster",
                received=sorted(jobs),
                accepted="either chief or master",
                remedy="Keep chief: master is its older name.",
            )
        jobs["chief"] = jobs.pop("master")
    if not any(jobs.values()):
        raise UsageError(
            "TF_CONFIG cluster",
            received=config["cluster"],
            accepted="at least one address of a chief or worker",
            remedy="List the tasks, or unset TF_CONFIG to train in this process alone.",
        )
    for name in jobs:
        if name not in JOB_NAMES:
            raise UsageError(
                "TF_CONFIG cluster",
                received=name,
                accepted=", ".join([*JOB_NAMES, "master"]),
                remedy="Name the evaluator in task alone: it is not part of the cluster."
                if name == "evaluator"
                else "Rename the job.",
            )
    for key, accepted in (("type", ", ".join(TASK_TYPES)), ("index", "a whole number from 0")):
        if task.get(key) is None:
            raise UsageError(
                f"TF_CONFIG task.{key}",
                received=None,
                accepted=accepted,
                remedy="Say which task this process is.",
            )
    found = _checked(
        "TF_CONFIG", lambda name: f"TF_CONFIG {name}", jobs, task["type"], task["index"]
    )
    return replace(found, has_master=has_master, model_dir=_model_dir(config))


def from_horovodrun(environ: Mapping[str, str]) -> ClusterConfig | None:
    """The rank that `horovodrun` started; None where it did not start this process."""
    rank = environ.get("HOROVOD_RANK")
    if rank is None:
        return None
    number = _whole_number(rank)
    if not isinstance(number, int) or number < 0:
        raise UsageError(
            "HOROVOD_RANK",
            received=rank,
            accepted="a whole number from 0",
            remedy="Start the script with horovodrun, or unset the variable.",
        )
    return ClusterConfig(Cluster(), Task("worker", number), "horovodrun")


def _checked(
    source: str,
    field_of: Callable[[str], str],
    jobs: Mapping[str, Any],
    task_type: object,
    task_index: object,
) -> ClusterConfig:
    """Builds and checks cluster and task; errors name their fields as the source spells them."""
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
    """The int that a string of digits means; anything else as it is, for `Task` to refuse."""
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
            "or unset TF_CONFIG to train in this process alone.",
        )
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "…"
