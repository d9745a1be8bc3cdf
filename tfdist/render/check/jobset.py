"""The fields of a JobSet, a TrainingRuntime and a TrainJob, and the rules of their webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.cluster.environments.jobset import TASKS_VARIABLE
from tfdist.render.check.fields import (
    NAME,
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
from tfdist.render.jobset import SUFFIX
from tfdist.render.pods import LABEL

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


def jobset(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks a JobSet."""
    yield from header(manifest, "jobset.x-k8s.io/v1alpha2")
    name = str(at(manifest, "metadata", "name"))
    yield from _jobset_spec(at(manifest, "spec"), "spec", name)


def training_runtime(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks a TrainingRuntime of Kubeflow Trainer v2."""
    yield from header(manifest, "trainer.kubeflow.org/v1alpha1")
    name = str(at(manifest, "metadata", "name"))
    yield from fields(at(manifest, "spec"), "spec", {"mlPolicy", "podGroupPolicy", "template"})
    yield from _jobset_spec(at(manifest, "spec", "template", "spec"), "spec.template.spec", name)


def train_job(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks a TrainJob of Kubeflow Trainer v2."""
    yield from header(manifest, "trainer.kubeflow.org/v1alpha1")
    spec = at(manifest, "spec")
    yield from fields(spec, "spec", _TRAIN_JOB)
    yield from one_of(
        spec, "spec.runtimeRef", "kind", ["TrainingRuntime", "ClusterTrainingRuntime"]
    )
    if not isinstance(at(spec, "runtimeRef", "name"), str):
        yield problem("spec.runtimeRef.name", at(spec, "runtimeRef", "name"), "a name")


def _jobset_spec(spec: Any, place: str, name: str) -> Iterator[str]:
    yield from fields(spec, place, _JOBSET)
    jobs = at(spec, "replicatedJobs")
    if not (isinstance(jobs, list) and jobs and all(isinstance(job, dict) for job in jobs)):
        yield problem(f"{place}.replicatedJobs", jobs, "a list of replicated jobs")
        return
    names = [job.get("name") for job in jobs]
    success = f"{place}.successPolicy"
    yield from one_of(spec, success, "operator", ["All", "Any"])
    for target in at(spec, "successPolicy", "targetReplicatedJobs") or []:
        if target not in names:
            yield problem(f"{success}.targetReplicatedJobs", target, listed(names))
    restarts = at(spec, "failurePolicy", "maxRestarts")
    if not is_count(restarts):
        yield problem(f"{place}.failurePolicy.maxRestarts", restarts, "a number from 0")
    for index, rule in enumerate(at(spec, "failurePolicy", "rules") or []):
        where = f"{place}.failurePolicy.rules[{index}]"
        yield from fields(
            rule, where, {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}
        )
        if at(rule, "action") not in _ACTIONS:
            yield problem(f"{where}.action", at(rule, "action"), listed(_ACTIONS))
        for reason in at(rule, "onJobFailureReasons") or []:
            if reason not in _REASONS:
                yield problem(f"{where}.onJobFailureReasons", reason, listed(_REASONS))
    if len({*map(str, names)}) < len(names):
        yield problem(f"{place}.replicatedJobs", names, "each name once")
    counts = {job.get("name"): at(job, "template", "spec", "completions") for job in jobs}
    for index, job in enumerate(jobs):
        yield from _replicated_job(job, f"{place}.replicatedJobs[{index}]", name, counts)


def _replicated_job(
    job: Mapping[str, Any], place: str, name: str, counts: Mapping[Any, Any]
) -> Iterator[str]:
    yield from fields(job, place, {"name", "replicas", "template", "dependsOn", "groupName"})
    role, spec = job.get("name"), at(job, "template", "spec")
    if not (isinstance(role, str) and NAME.fullmatch(role)):
        yield problem(f"{place}.name", role, "lower-case letters, digits and dashes")
    if job.get("replicas") != 1:
        yield problem(f"{place}.replicas", job.get("replicas"), "1; completions count the tasks")
    count = at(spec, "completions")
    if not is_count(count) or count < 1 or at(spec, "parallelism") != count:
        received = f"{count}, with parallelism {at(spec, 'parallelism')}"
        yield problem(f"{place}.template.spec.completions", received, "two equal numbers from 1")
        return
    pod = f"{name}-{role}-0-{count - 1}{SUFFIX}"
    if len(pod) > LABEL:
        yield problem("metadata.name", name, f"a name whose pods, such as {pod}, have {LABEL}")
    if at(spec, "completionMode") != "Indexed":
        yield problem(
            f"{place}.template.spec.completionMode", at(spec, "completionMode"), "Indexed"
        )
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    for found in kubernetes(whole):
        yield f"{place}.template.{found}"
    yield from _pod(at(spec, "template", "spec"), f"{place}.template.spec.template.spec", counts)
    for rule in at(spec, "podFailurePolicy", "rules") or []:
        actions = ("FailJob", "FailIndex", "Ignore", "Count")
        if at(rule, "action") not in actions:
            where = f"{place}.template.spec.podFailurePolicy.rules"
            yield problem(where, at(rule, "action"), listed(actions))


def _pod(spec: Any, place: str, counts: Mapping[Any, Any]) -> Iterator[str]:
    if at(spec, "restartPolicy") != "Never":
        # A pod failure policy, and the restart of all pods together, need it.
        yield problem(f"{place}.restartPolicy", at(spec, "restartPolicy"), "Never")
    containers = containers_of(spec)
    yield from training_container(containers, place)
    tasks = ",".join(f"{role}={count}" for role, count in counts.items())
    for container in containers:
        for variable in at(container, "env") or []:
            if at(variable, "name") == TASKS_VARIABLE and at(variable, "value") != tasks:
                yield problem(f"{place}.containers.env", at(variable, "value"), tasks)
