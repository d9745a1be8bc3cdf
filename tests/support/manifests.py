"""Validates what `tfdist render` prints for Kubernetes.

The schemas of Kubernetes (the package kubernetes-validate) have pods, jobs, secrets and network
policies. Of the operators' own kinds this checks the fields that tfdist renders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate

from tfdist.tools.render.pods import Manifest

_KUBERNETES = "1.33"
#: The fields that tfdist renders. The CRDs of JobSet 0.13, Kubeflow Trainer 2.3 and the Training
#: Operator 1.9 have them: look there before you add one.
_FIELDS = {
    "JobSet": {"network", "successPolicy", "failurePolicy", "replicatedJobs"},
    "JobSet network": {"enableDNSHostnames", "publishNotReadyAddresses"},
    "JobSet successPolicy": {"operator", "targetReplicatedJobs"},
    "JobSet failurePolicy": {"maxRestarts", "rules"},
    "JobSet rule": {"name", "action", "onJobFailureReasons"},
    "replicated job": {"name", "replicas", "template"},
    "TrainingRuntime": {"template"},
    "TrainJob": {"runtimeRef"},
    "TrainJob runtimeRef": {"apiGroup", "kind", "name"},
    "TFJob": {"runPolicy", "tfReplicaSpecs"},
    "TFJob runPolicy": {"cleanPodPolicy", "backoffLimit"},
    "TFJob role": {"replicas", "restartPolicy", "template"},
}


def validate(manifest: Manifest) -> None:
    """Validates the items of a manifest.

    Raises:
      kubernetes_validate.ValidationError: Kubernetes would refuse a part.
      AssertionError: the operator of a kind would refuse it.
    """
    assert (manifest["apiVersion"], manifest["kind"]) == ("v1", "List")
    for item in manifest["items"]:
        for part in _parts(item):
            kubernetes_validate.validate(part, _KUBERNETES, strict=True)


def _parts(item: Manifest) -> Iterator[Manifest]:
    """What Kubernetes itself has of an item: the item, or the jobs or pods of which it consists."""
    kind, spec = item["kind"], item.get("spec", {})
    if kind == "JobSet":
        yield from _jobs(spec)
    elif kind == "TrainingRuntime":
        yield from _jobs(_checked(spec, kind)["template"]["spec"])
    elif kind == "TrainJob":
        _checked(_checked(spec, kind)["runtimeRef"], "TrainJob runtimeRef")
    elif kind == "TFJob":
        _checked(_checked(spec, kind)["runPolicy"], "TFJob runPolicy")
        for role in spec["tfReplicaSpecs"].values():
            template = _checked(role, "TFJob role")["template"]
            yield _named({"apiVersion": "v1", "kind": "PodTemplate", "template": template})
    else:
        yield item


def _jobs(jobset: Any) -> Iterator[Manifest]:
    _checked(jobset, "JobSet")
    for policy in ("network", "successPolicy", "failurePolicy"):
        _checked(jobset[policy], f"JobSet {policy}")
    for rule in jobset["failurePolicy"]["rules"]:
        _checked(rule, "JobSet rule")
    roles = {_checked(job, "replicated job")["name"] for job in jobset["replicatedJobs"]}
    assert roles.issuperset(jobset["successPolicy"]["targetReplicatedJobs"])
    for job in jobset["replicatedJobs"]:
        yield _named({"apiVersion": "batch/v1", "kind": "Job", **job["template"]})


def _checked(value: Any, name: str) -> Any:
    """The value, which must have only the fields of this name."""
    assert value.keys() <= _FIELDS[name], (name, value.keys() - _FIELDS[name])
    return value


def _named(part: Manifest) -> Manifest:
    return {"metadata": {"name": "part"}, **part}
