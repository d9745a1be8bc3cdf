"""The manifests of a JobSet and a TrainJob.

python -m tests.unit.tools.render.test_jobset     # writes the golden files again
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import ValidationError

from tests.support.job_specs import job_spec
from tests.support.manifests import validate
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.errors import UsageError
from tfdist.tools.render.jobset import manifest, trainjob
from tfdist.tools.render.pods import Manifest, QueuedPods
from tfdist.tools.render.rendered_job import RenderedJob

pytestmark = pytest.mark.stacks("newest")

GOLDEN = Path(__file__).parent / "golden"
PODS = QueuedPods(image="example.org/train:1", queue="team", gpus=1, token="0123")


def job(name: str = "train", **options: Any) -> RenderedJob:
    tasks = {"ps": 2, "workers": 3, "chief": True, "evaluator": True}
    chosen = {"strategy": "parameter_server", **tasks, **options}
    spec = job_spec(args=("-x", "y"), **chosen)
    return RenderedJob(spec=spec, name=name)


MANIFESTS = {"jobset": manifest, "trainjob": trainjob}
JOBS = {
    "all_roles": job(),
    "workers": job(strategy="multi_worker_mirrored", ps=0, chief=False, evaluator=False),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_golden_files(name: str) -> None:
    assert MANIFESTS[name](job(), PODS) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("roles", JOBS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_rendered_manifest_is_valid(name: str, roles: str) -> None:
    validate(MANIFESTS[name](JOBS[roles], PODS))
    validate(MANIFESTS[name](JOBS[roles], QueuedPods(image="example.org/train:1")))


@pytest.mark.parametrize(
    "field", ["replicatedJobs", "backoffLimit", "containers", "runtimeRef", "stringData", "ingress"]
)
def test_an_unknown_field_is_not_valid(field: str) -> None:
    text = json.dumps(trainjob(job(), PODS))
    assert f'"{field}"' in text
    with pytest.raises((AssertionError, ValidationError)):
        validate(json.loads(text.replace(f'"{field}"', f'"{field}1"')))


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


def test_a_name_that_a_pod_or_a_service_cannot_have_is_refused() -> None:
    longest = "a" * 43
    assert len(f"{longest}-evaluator-0-0-abcde") == 63
    validate(manifest(job(longest), PODS))
    for name in (longest + "a", "01-train"):
        with pytest.raises(UsageError, match="a letter and at most 42 letters, digits"):
            manifest(job(name), PODS)


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    started = time.process_time()
    text = json.dumps(manifest(job(workers=10_000), PODS))
    assert time.process_time() - started < 1
    assert "worker=10000" in text


if __name__ == "__main__":
    for each, makes in MANIFESTS.items():
        (GOLDEN / f"{each}.json").write_text(json.dumps(makes(job(), PODS), indent=2) + "\n")
