"""The fields of a TFJob, and the rules of its webhook; the operator accepts any other field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.render.check.fields import (
    at,
    containers_of,
    fields,
    header,
    is_count,
    kubernetes,
    listed,
    one_of,
    problem,
    training_container,
)
from tfdist.render.pods import LABEL
from tfdist.render.tfjob import PORT_NAME

_SPEC = {"runPolicy", "successPolicy", "tfReplicaSpecs", "enableDynamicWorker"}
_RUN_POLICY = {
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy"),
    *("schedulingPolicy", "suspend", "ttlSecondsAfterFinished"),
}
_TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")


def tfjob(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks a TFJob."""
    yield from header(manifest, "kubeflow.org/v1")
    spec = at(manifest, "spec")
    yield from fields(spec, "spec", _SPEC)
    if at(spec, "enableDynamicWorker"):
        yield problem(
            "spec.enableDynamicWorker", True, "false: a task's TF_CONFIG needs all workers"
        )
    if (success := at(spec, "successPolicy")) not in (None, "", "AllWorkers"):
        yield problem("spec.successPolicy", success, "AllWorkers, or none: the chief ends the job")
    policy = at(spec, "runPolicy")
    yield from fields(policy, "spec.runPolicy", _RUN_POLICY)
    # None, which is the operator's default, leaves the ps running when the chief has ended.
    yield from one_of(spec, "spec.runPolicy", "cleanPodPolicy", ["All", "Running"])
    if not is_count(limit := at(policy, "backoffLimit")):
        yield problem("spec.runPolicy.backoffLimit", limit, "a number from 0")
    replicas = at(spec, "tfReplicaSpecs")
    if not (isinstance(replicas, dict) and replicas):
        yield problem("spec.tfReplicaSpecs", replicas, "an object with a field for each role")
        return
    if {"Chief", "Master"} <= set(replicas):
        yield problem("spec.tfReplicaSpecs", listed(replicas), "one of Chief and Master")
    for kind, role in replicas.items():
        yield from _role(kind, role, str(at(manifest, "metadata", "name")))


def _role(kind: str, role: Any, name: str) -> Iterator[str]:
    place = f"spec.tfReplicaSpecs.{kind}"
    if kind not in _TYPES:
        yield problem("spec.tfReplicaSpecs", kind, listed(_TYPES))
    yield from fields(role, place, {"replicas", "restartPolicy", "template"})
    count = at(role, "replicas")
    most = 1 if kind in ("Chief", "Master", "Evaluator") else None
    if not is_count(count) or count < 1 or (most and count > most):
        yield problem(f"{place}.replicas", count, "1" if most else "a number from 1")
        return
    pod = f"{name}-{kind.lower()}-{count - 1}"
    if len(pod) > LABEL:
        yield problem("metadata.name", name, f"a name whose pods, such as {pod}, have {LABEL}")
    policies = ("Always", "ExitCode", "Never", "OnFailure")
    if (policy := at(role, "restartPolicy")) not in policies:
        yield problem(f"{place}.restartPolicy", policy, listed(policies))
    template = at(role, "template")
    whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
    for found in kubernetes({**whole, "template": template}):
        yield f"{place}.{found}"
    spec, where = at(template, "spec"), f"{place}.template.spec"
    if (policy := at(spec, "restartPolicy")) is not None:
        yield problem(f"{where}.restartPolicy", policy, f"none here: {place}.restartPolicy")
    containers = containers_of(spec)
    yield from training_container(containers, where)
    ports = [at(port, "name") for each in containers for port in at(each, "ports") or []]
    if PORT_NAME not in ports:
        yield problem(f"{where}.containers.ports", listed(ports), f"one that is called {PORT_NAME}")
