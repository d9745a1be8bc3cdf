"""Finds mistakes in a manifest of `tfdist render jobset` or `trainjob`, also after it was edited.

    problems(json.load(file))      # ["JobSet spec.replicatedJobs[0].name: received 'PS'; …"]

The schemas of Kubernetes (the package kubernetes-validate, strict) check what Kubernetes itself
has: pods, jobs and network policies. The fields of JobSet and TrainJob, and the rules of their
webhooks, are written here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfdist.cluster.environments.jobset import TASKS_VARIABLE
from tfdist.errors import UsageError
from tfdist.render.jobset import CONTAINER, LABEL, SUFFIX

KUBERNETES = "1.33"

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # RFC 1035
_JOBSET = {
    *("network", "successPolicy", "failurePolicy", "startupPolicy", "replicatedJobs", "suspend"),
    *("coordinator", "managedBy", "ttlSecondsAfterFinished"),
}
_TRAIN_JOB = {"runtimeRef", "trainer", "initializer", "labels", "annotations", "suspend"}
_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
_REASONS = (
    *("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes"),
    *("MaxFailedIndexesExceeded", "PodFailurePolicy"),
)


def problems(manifest: Any) -> list[str]:
    """What is wrong with a manifest, one sentence each; empty if nothing was found.

    Raises:
      UsageError: kubernetes-validate is not installed.
    """
    if not isinstance(manifest, dict):
        return [f"manifest: received {type(manifest).__name__}; accepted: a JSON object"]
    if manifest.get("kind") == "List":
        items = manifest.get("items")
        return [each for item in items or [] for each in problems(item)]
    kind = manifest.get("kind")
    check = {
        "JobSet": _jobset,
        "TrainingRuntime": _training_runtime,
        "TrainJob": _train_job,
        "NetworkPolicy": _kubernetes,
    }.get(str(kind))
    if check is None:
        return [_problem("kind", kind, "JobSet, TrainingRuntime, TrainJob or NetworkPolicy")]
    return [f"{kind} {each}" for each in check(manifest)]


def _jobset(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from _header(manifest, "jobset.x-k8s.io/v1alpha2")
    name = str(_at(manifest, "metadata", "name"))
    yield from _jobset_spec(_at(manifest, "spec"), "spec", name)


def _training_runtime(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from _header(manifest, "trainer.kubeflow.org/v1alpha1")
    name = str(_at(manifest, "metadata", "name"))
    yield from _fields(_at(manifest, "spec"), "spec", {"mlPolicy", "podGroupPolicy", "template"})
    yield from _jobset_spec(_at(manifest, "spec", "template", "spec"), "spec.template.spec", name)


def _train_job(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from _header(manifest, "trainer.kubeflow.org/v1alpha1")
    spec = _at(manifest, "spec")
    yield from _fields(spec, "spec", _TRAIN_JOB)
    yield from _one_of(
        spec, "spec.runtimeRef", "kind", ["TrainingRuntime", "ClusterTrainingRuntime"]
    )
    if not isinstance(_at(spec, "runtimeRef", "name"), str):
        yield _problem("spec.runtimeRef.name", _at(spec, "runtimeRef", "name"), "a name")


def _jobset_spec(spec: Any, place: str, name: str) -> Iterator[str]:
    yield from _fields(spec, place, _JOBSET)
    jobs = _at(spec, "replicatedJobs")
    if not (isinstance(jobs, list) and jobs and all(isinstance(job, dict) for job in jobs)):
        yield _problem(f"{place}.replicatedJobs", jobs, "a list of replicated jobs")
        return
    names = [job.get("name") for job in jobs]
    success = f"{place}.successPolicy"
    yield from _one_of(spec, success, "operator", ["All", "Any"])
    for target in _at(spec, "successPolicy", "targetReplicatedJobs") or []:
        if target not in names:
            yield _problem(f"{success}.targetReplicatedJobs", target, _listed(names))
    restarts = _at(spec, "failurePolicy", "maxRestarts")
    if not _is_count(restarts):
        yield _problem(f"{place}.failurePolicy.maxRestarts", restarts, "a number from 0")
    for index, rule in enumerate(_at(spec, "failurePolicy", "rules") or []):
        where = f"{place}.failurePolicy.rules[{index}]"
        yield from _fields(
            rule, where, {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}
        )
        if _at(rule, "action") not in _ACTIONS:
            yield _problem(f"{where}.action", _at(rule, "action"), _listed(_ACTIONS))
        for reason in _at(rule, "onJobFailureReasons") or []:
            if reason not in _REASONS:
                yield _problem(f"{where}.onJobFailureReasons", reason, _listed(_REASONS))
    if len({*map(str, names)}) < len(names):
        yield _problem(f"{place}.replicatedJobs", names, "each name once")
    counts = {job.get("name"): _at(job, "template", "spec", "completions") for job in jobs}
    for index, job in enumerate(jobs):
        yield from _replicated_job(job, f"{place}.replicatedJobs[{index}]", name, counts)


def _replicated_job(
    job: Mapping[str, Any], place: str, name: str, counts: Mapping[Any, Any]
) -> Iterator[str]:
    yield from _fields(job, place, {"name", "replicas", "template", "dependsOn", "groupName"})
    role, spec = job.get("name"), _at(job, "template", "spec")
    if not (isinstance(role, str) and _NAME.fullmatch(role)):
        yield _problem(f"{place}.name", role, "lower-case letters, digits and dashes")
    if job.get("replicas") != 1:
        yield _problem(f"{place}.replicas", job.get("replicas"), "1; completions count the tasks")
    count = _at(spec, "completions")
    if not _is_count(count) or count < 1 or _at(spec, "parallelism") != count:
        received = f"{count}, with parallelism {_at(spec, 'parallelism')}"
        yield _problem(f"{place}.template.spec.completions", received, "two equal numbers from 1")
        return
    pod = f"{name}-{role}-0-{count - 1}{SUFFIX}"
    if len(pod) > LABEL:
        yield _problem("metadata.name", name, f"a name whose pods, such as {pod}, have {LABEL}")
    if _at(spec, "completionMode") != "Indexed":
        yield _problem(
            f"{place}.template.spec.completionMode", _at(spec, "completionMode"), "Indexed"
        )
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    for found in _kubernetes(whole):
        yield f"{place}.template.{found}"
    yield from _pod(_at(spec, "template", "spec"), f"{place}.template.spec.template.spec", counts)
    for rule in _at(spec, "podFailurePolicy", "rules") or []:
        actions = ("FailJob", "FailIndex", "Ignore", "Count")
        if _at(rule, "action") not in actions:
            where = f"{place}.template.spec.podFailurePolicy.rules"
            yield _problem(where, _at(rule, "action"), _listed(actions))


def _pod(spec: Any, place: str, counts: Mapping[Any, Any]) -> Iterator[str]:
    if _at(spec, "restartPolicy") != "Never":
        # A pod failure policy, and the restart of all pods together, need it.
        yield _problem(f"{place}.restartPolicy", _at(spec, "restartPolicy"), "Never")
    containers = _at(spec, "containers")
    containers = containers if isinstance(containers, list) else []
    if CONTAINER not in [_at(container, "name") for container in containers]:
        names = [_at(container, "name") for container in containers]
        yield _problem(f"{place}.containers", names, f"one that is called {CONTAINER}")
    tasks = ",".join(f"{role}={count}" for role, count in counts.items())
    for container in containers:
        for variable in _at(container, "env") or []:
            if _at(variable, "name") == TASKS_VARIABLE and _at(variable, "value") != tasks:
                yield _problem(f"{place}.containers.env", _at(variable, "value"), tasks)


def _kubernetes(manifest: Mapping[str, Any]) -> Iterator[str]:
    try:
        import kubernetes_validate
    except ImportError:
        raise UsageError(
            "tfdist render check",
            received="no package kubernetes-validate",
            accepted="it, with the schemas of Kubernetes",
            remedy='Install it: pip install "tfdist[kubernetes]".',
        ) from None
    try:
        kubernetes_validate.validate(dict(manifest), KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        yield _problem("apiVersion", manifest.get("apiVersion"), "that of its kind")
    except kubernetes_validate.ValidationError as error:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"


def _header(manifest: Mapping[str, Any], version: str) -> Iterator[str]:
    yield from _fields(manifest, "", {"apiVersion", "kind", "metadata", "spec"})
    if manifest.get("apiVersion") != version:
        yield _problem("apiVersion", manifest.get("apiVersion"), version)
    name = _at(manifest, "metadata", "name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        accepted = "lower-case letters, digits and dashes, beginning with a letter"
        yield _problem("metadata.name", name, accepted)
    labels = _at(manifest, "metadata", "labels") or {}
    for label, value in labels.items():
        if not isinstance(value, str):
            yield _problem(f"metadata.labels.{label}", value, "a string")


def _fields(value: Any, place: str, accepted: Collection[str]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _problem(place, value, "a JSON object")
        return
    for name in value:
        if name not in accepted:
            yield _problem(f"{place}.{name}".lstrip("."), "a field of this name", _listed(accepted))


def _one_of(spec: Any, place: str, field: str, accepted: Collection[str]) -> Iterator[str]:
    value = _at(spec, place.rpartition(".")[2], field)
    if value not in accepted:
        yield _problem(f"{place}.{field}", value, _listed(accepted))


def _at(value: Any, *names: str) -> Any:
    """A value inside of objects; None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _listed(names: Collection[Any]) -> str:
    return ", ".join(sorted(map(str, names)))


def _problem(place: str, received: Any, accepted: str) -> str:
    return f"{place}: received {received!r}; accepted: {accepted}"
