"""The manifests of a JobSet and a TrainJob, and the mistakes that are found in them.

python -m tests.unit.render.test_jobset     # writes the golden files again
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.errors import UsageError
from tfdist.launch.spec import JobSpec
from tfdist.render.check import problems
from tfdist.render.job import RenderedJob
from tfdist.render.jobset import manifest, trainjob
from tfdist.render.pods import Manifest, Pods

pytestmark = pytest.mark.stacks("newest")

GOLDEN = Path(__file__).parent / "golden"
PODS = Pods(image="example.org/train:1", queue="team", gpus=1, token="0123")


def job(name: str = "train", **options: Any) -> RenderedJob:
    tasks = {"ps": 2, "workers": 3, "chief": True, "evaluator": True, **options}
    spec = JobSpec(
        python="python", script="train.py", args=("-x", "y"), strategy="parameter_server", **tasks
    )
    return RenderedJob(spec=spec, name=name)


MANIFESTS = {"jobset": manifest, "trainjob": trainjob}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_golden_files(name: str) -> None:
    assert MANIFESTS[name](job(), PODS) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_rendered_manifest_has_no_mistake(name: str) -> None:
    assert problems(MANIFESTS[name](job(), PODS)) == []


def environ_of(pod: Any, labels: dict[str, str], secret: Manifest) -> dict[str, str]:
    """The environment that Kubernetes makes of the template of a pod."""
    environ = {}
    for variable in pod["containers"][0]["env"]:
        if "value" in variable:
            environ[variable["name"]] = variable["value"]
        elif reference := variable["valueFrom"].get("secretKeyRef"):
            assert reference["name"] == secret["metadata"]["name"]
            environ[variable["name"]] = secret["stringData"][reference["key"]]
        else:
            environ[variable["name"]] = labels[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return environ


def test_the_pods_find_their_places() -> None:
    """Each pod with the variables that Kubernetes makes of its template."""
    (secret, jobset, _) = manifest(job("run1"), PODS)["items"]
    found = {}
    for replicated in jobset["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        labels = {
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "run1",
            "metadata.labels['jobset.sigs.k8s.io/replicatedjob-name']": replicated["name"],
        }
        environ = environ_of(spec["template"]["spec"], labels, secret)
        assert environ["TFDIST_JOB_TOKEN"] == PODS.token
        for index in range(spec["completions"]):
            own = {**environ, "JOB_COMPLETION_INDEX": str(index)}
            config = discover(ClusterFlags(), own)
            if config.task.type != "evaluator":
                found[str(config.task)] = config.cluster.address(config.task)
    assert found["ps:1"] == "run1-ps-0-1.run1:2222"
    assert found["worker:2"] == "run1-worker-0-2.run1:2222"
    assert len(found) == 6


Mutate = Callable[[Manifest], None]


def first(kind: str) -> Callable[[Manifest], Any]:
    return lambda whole: next(item for item in whole["items"] if item["kind"] == kind)


def spec_of(whole: Manifest) -> Any:
    return first("JobSet")(whole)["spec"]


def job_of(whole: Manifest) -> Any:
    return spec_of(whole)["replicatedJobs"][0]["template"]["spec"]


def pod_of(whole: Manifest) -> Any:
    return job_of(whole)["template"]["spec"]


def container_of(whole: Manifest) -> Any:
    return pod_of(whole)["containers"][0]


def sets(find: Callable[[Manifest], Any], name: str, value: Any) -> Mutate:
    return lambda whole: find(whole).update({name: value})


def renames(find: Callable[[Manifest], Any], name: str, other: str) -> Mutate:
    return lambda whole: find(whole).update({other: find(whole).pop(name)})


POLICY = "NetworkPolicy"
MUTATIONS: dict[str, tuple[Mutate, str]] = {
    "kind": (sets(first("JobSet"), "kind", "JobSets"), "kind: received 'JobSets'"),
    "version": (sets(first("JobSet"), "apiVersion", "jobset.x-k8s.io/v1"), "apiVersion"),
    "upper_case_name": (
        sets(lambda whole: first("JobSet")(whole)["metadata"], "name", "Train"),
        "metadata.name: received 'Train'",
    ),
    "long_name": (
        sets(lambda whole: first("JobSet")(whole)["metadata"], "name", "a" * 55),
        "metadata.name",
    ),
    "label": (
        sets(lambda whole: first("JobSet")(whole)["metadata"], "labels", {"queue": True}),
        "metadata.labels.queue",
    ),
    "spec_field": (renames(spec_of, "replicatedJobs", "replicatedJob"), "spec.replicatedJob"),
    "operator": (
        sets(lambda whole: spec_of(whole)["successPolicy"], "operator", "Every"),
        "spec.successPolicy.operator",
    ),
    "target": (
        sets(lambda whole: spec_of(whole)["successPolicy"], "targetReplicatedJobs", ["cheif"]),
        "received 'cheif'",
    ),
    "restarts": (
        sets(lambda whole: spec_of(whole)["failurePolicy"], "maxRestarts", "3"),
        "maxRestarts: received '3'",
    ),
    "action": (
        sets(lambda whole: spec_of(whole)["failurePolicy"]["rules"][0], "action", "Fail"),
        "action: received 'Fail'",
    ),
    "reason": (
        sets(
            lambda whole: spec_of(whole)["failurePolicy"]["rules"][0],
            "onJobFailureReasons",
            ["PodFailurePolice"],
        ),
        "received 'PodFailurePolice'",
    ),
    "role": (
        sets(lambda whole: spec_of(whole)["replicatedJobs"][0], "name", "PS"),
        "name: received 'PS'",
    ),
    "replicas": (
        sets(lambda whole: spec_of(whole)["replicatedJobs"][0], "replicas", 2),
        "replicas: received 2",
    ),
    "completions": (sets(job_of, "completions", 3), "completions"),
    "mode": (sets(job_of, "completionMode", "NonIndexed"), "completionMode"),
    "job_field": (renames(job_of, "backoffLimit", "backOffLimit"), "backOffLimit"),
    "job_type": (sets(job_of, "backoffLimit", "0"), "'0' is not of type"),
    "pod_policy": (
        sets(lambda whole: job_of(whole)["podFailurePolicy"]["rules"][0], "action", "Ignor"),
        "received 'Ignor'",
    ),
    "restart_policy": (sets(pod_of, "restartPolicy", "OnFailure"), "restartPolicy"),
    "pod_field": (renames(pod_of, "containers", "contaners"), "'containers' is a required"),
    "container": (sets(container_of, "name", "train"), "one that is called tensorflow"),
    "container_field": (renames(container_of, "image", "img"), "img"),
    "env_value": (sets(container_of, "env", [{"name": "A", "value": 1}]), "1 is not of type"),
    "tasks": (sets(container_of, "env", [{"name": "TFDIST_TASKS", "value": "ps=1"}]), "ps=2"),
    "port": (sets(container_of, "ports", [{"containerPort": "2222"}]), "'2222' is not of type"),
    "policy": (sets(lambda whole: first(POLICY)(whole)["spec"], "ingres", []), "ingres"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_is_found(mutation: str) -> None:
    mutate, said = MUTATIONS[mutation]
    whole = copy.deepcopy(manifest(job(), PODS))
    mutate(whole)
    assert any(said in problem for problem in problems(whole)), problems(whole)


def test_a_training_job_needs_its_runtime() -> None:
    whole = copy.deepcopy(trainjob(job(), PODS))
    first("TrainJob")(whole)["spec"]["runtimeRef"]["kind"] = "Runtime"
    first("TrainingRuntime")(whole)["spec"]["template"]["spec"]["replicatedJob"] = []
    found = problems(whole)
    assert any("runtimeRef.kind: received 'Runtime'" in problem for problem in found)
    assert any("spec.template.spec.replicatedJob" in problem for problem in found)


def test_a_name_that_is_too_long_for_a_pod_is_refused() -> None:
    with pytest.raises(UsageError, match="--name"):
        manifest(job("a" * 50), PODS)


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    started = time.process_time()
    text = json.dumps(manifest(job(workers=10_000), PODS))
    assert time.process_time() - started < 1
    assert "worker=10000" in text


if __name__ == "__main__":
    for each, makes in MANIFESTS.items():
        (GOLDEN / f"{each}.json").write_text(json.dumps(makes(job(), PODS), indent=2) + "\n")
