"""TF_CONFIG, in TF2's dialect or the older one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfdist.cluster import task_types
from tfdist.cluster.config import ClusterConfig, checked
from tfdist.cluster.environments.base import Environment
from tfdist.cluster.task_types import WORKER
from tfdist.errors import ERROR_FILE_VARIABLE, UsageError

_DYNAMIC_WORKER = "In a TFJob of Kubeflow, set enableDynamicWorker to false."


class TFConfig(Environment):
    """The variable that `tf.distribute` reads."""

    name = "TF_CONFIG"

    def config(self) -> ClusterConfig | None:
        return from_tf_config(self.environ)


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
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "TF_CONFIG",
            received=text if len(text) <= 80 else text[:77] + "…",
            accepted='JSON: {"cluster": {"worker": ["host:port", …]}, "task": {"type": …, …}}',
            remedy=f"Correct the JSON: {error}.",
        ) from None
    config = _mapping("TF_CONFIG", config)
    cluster = _mapping("TF_CONFIG cluster", config.get("cluster"))
    beside = {*task_types.rows()} - {*task_types.in_cluster()}
    jobs = {
        name: _listed(name, addresses) if isinstance(addresses, dict) else addresses
        for name, addresses in cluster.items()
        if name not in beside
    }
    tasks = [address for job in jobs.values() if isinstance(job, list) for address in job]
    if isinstance(cluster.get(WORKER), dict) and len(tasks) == 1:
        # Worker 0 would train alone, while the other workers are refused.
        raise UsageError(
            "TF_CONFIG cluster",
            received=cluster,
            accepted="the addresses of all tasks; those of a single worker only as a list",
            remedy=_DYNAMIC_WORKER,
        )
    task = _mapping("TF_CONFIG task", config.get("task"))
    older = [(old, name) for old, name in task_types.older_names().items() if old in jobs]
    for old, name in older:
        if name in jobs:
            raise UsageError(
                "TF_CONFIG cluster",
                received=sorted(jobs),
                accepted=f"either {name} or {old}",
                remedy=f"Keep {name}, because {old} is its older name.",
            )
        jobs[name] = jobs.pop(old)
    if not any(jobs.values()):
        raise UsageError(
            "TF_CONFIG cluster",
            received=cluster,
            accepted="at least one address of a chief or worker",
            remedy="List the tasks, or unset TF_CONFIG to train in a single process.",
        )
    for name in jobs:
        if name not in task_types.in_cluster():
            names = [*task_types.in_cluster(), *task_types.older_names()]
            raise UsageError.choice("TF_CONFIG cluster", name, names)
    cluster_config = checked(
        "TF_CONFIG", lambda name: f"TF_CONFIG {name}", jobs, task.get("type"), task.get("index")
    )
    return replace(
        cluster_config,
        has_master=bool(older),
        model_dir=_model_dir(config),
        evidence="tfdist run" if ERROR_FILE_VARIABLE in environ else "",
    )


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
    """Converts a map from task index to address, which TensorFlow accepts, to a list.

    Kubeflow's `enableDynamicWorker` writes a map that leaves tasks out: a worker sees itself and
    the ps; a ps sees only itself; the other tasks see nothing.
    """
    indices = [str(index) for index in range(max(1, len(addresses)))]
    if {*indices} != {*addresses}:
        raise UsageError(
            f"TF_CONFIG cluster.{name}",
            received=dict(addresses),
            accepted="a list of host:port, or a map with one for each index from 0",
            remedy=f"Add what is missing: each task needs all addresses. {_DYNAMIC_WORKER}",
        )
    return [addresses[index] for index in indices]
