"""The manifest of a TFJob, and the mistakes that are found in it.

python -m tests.unit.render.test_tfjob     # writes the golden file again
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.render.test_jobset import PODS, job
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.errors import UsageError
from tfdist.render.check import problems
from tfdist.render.pods import Manifest
from tfdist.render.tfjob import manifest

pytestmark = pytest.mark.stacks("newest")

GOLDEN = Path(__file__).parent / "golden" / "tfjob.json"


def test_the_golden_file() -> None:
    assert manifest(job(), PODS) == json.loads(GOLDEN.read_text())


def test_a_rendered_manifest_has_no_mistake() -> None:
    assert problems(manifest(job(), PODS)) == []


def test_the_pods_find_their_places() -> None:
    """Each pod with the TF_CONFIG that the operator makes, with the evaluator in the cluster."""
    (_, tfjob, _) = manifest(job("run1"), PODS)["items"]
    cluster = {
        kind.lower(): [
            f"run1-{kind.lower()}-{index}.default.svc:2222" for index in range(role["replicas"])
        ]
        for kind, role in tfjob["spec"]["tfReplicaSpecs"].items()
    }
    found = {}
    for kind, addresses in cluster.items():
        for index in range(len(addresses)):
            task = {"type": kind, "index": index}
            environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
            config = discover(ClusterFlags(), environ)
            found[str(config.task)] = config.cluster.jobs()
    assert len(found) == 7
    jobs = {name: cluster[name] for name in ("chief", "worker", "ps")}
    assert all(each == jobs for each in found.values())


def spec_of(whole: Manifest) -> Any:
    return whole["items"][1]["spec"]


def worker_of(whole: Manifest) -> Any:
    return spec_of(whole)["tfReplicaSpecs"]["Worker"]


def pod_of(whole: Manifest) -> Any:
    return worker_of(whole)["template"]["spec"]


def sets(find: Callable[[Manifest], Any], name: str, value: Any) -> Callable[[Manifest], None]:
    return lambda whole: find(whole).update({name: value})


MUTATIONS: dict[str, tuple[Callable[[Manifest], None], str]] = {
    "kind": (sets(lambda whole: whole["items"][1], "kind", "TfJob"), "kind: received 'TfJob'"),
    "version": (
        sets(lambda whole: whole["items"][1], "apiVersion", "kubeflow.org/v1beta1"),
        "apiVersion",
    ),
    "name": (sets(lambda whole: whole["items"][1]["metadata"], "name", "1st"), "metadata.name"),
    "long_name": (
        sets(lambda whole: whole["items"][1]["metadata"], "name", "a" * 55),
        "metadata.name",
    ),
    "field": (sets(spec_of, "tfReplicaSpec", {}), "spec.tfReplicaSpec: "),
    "dynamic": (sets(spec_of, "enableDynamicWorker", True), "spec.enableDynamicWorker"),
    "success": (sets(spec_of, "successPolicy", "Chief"), "spec.successPolicy"),
    "clean": (
        sets(lambda whole: spec_of(whole)["runPolicy"], "cleanPodPolicy", "None"),
        "spec.runPolicy.cleanPodPolicy: received 'None'; accepted: All, Running",
    ),
    "limit": (
        sets(lambda whole: spec_of(whole)["runPolicy"], "backoffLimit", "3"),
        "spec.runPolicy.backoffLimit",
    ),
    "role": (
        lambda whole: spec_of(whole)["tfReplicaSpecs"].update(
            Wroker=copy.deepcopy(worker_of(whole))
        ),
        "spec.tfReplicaSpecs: received 'Wroker'",
    ),
    "two_chiefs": (
        lambda whole: spec_of(whole)["tfReplicaSpecs"]["Chief"].update(replicas=2),
        "spec.tfReplicaSpecs.Chief.replicas: received 2; accepted: 1",
    ),
    "chief_and_master": (
        lambda whole: spec_of(whole)["tfReplicaSpecs"].update(
            Master=spec_of(whole)["tfReplicaSpecs"]["Chief"]
        ),
        "accepted: one of Chief and Master",
    ),
    "replicas": (sets(worker_of, "replicas", "3"), "spec.tfReplicaSpecs.Worker.replicas"),
    "restart": (sets(worker_of, "restartPolicy", "Sometimes"), "Worker.restartPolicy"),
    "pod_restart": (
        sets(pod_of, "restartPolicy", "Never"),
        "Worker.template.spec.restartPolicy: received 'Never'",
    ),
    "container": (
        lambda whole: pod_of(whole)["containers"][0].update(name="train"),
        "one that is called tensorflow",
    ),
    "port": (
        lambda whole: pod_of(whole)["containers"][0]["ports"][0].update(name="grpc"),
        "one that is called tfjob-port",
    ),
    "memory": (
        lambda whole: pod_of(whole)["containers"][0]["resources"]["limits"].update(memory=[]),
        "Worker",
    ),
    "typo": (sets(pod_of, "containerz", []), "containerz"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str) -> None:
    mutate, sentence = MUTATIONS[name]
    whole = manifest(job(), PODS)
    mutate(whole)
    found = problems(whole)
    assert any(sentence in each for each in found), found


def test_a_name_that_is_too_long_is_refused() -> None:
    assert problems(manifest(job("a" * 51), PODS)) == []
    with pytest.raises(UsageError, match="at most 51 characters"):
        manifest(job("a" * 52), PODS)


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    started = time.process_time()
    whole = manifest(job(workers=10_000), PODS)
    assert problems(whole) == []
    assert time.process_time() - started < 1
    assert '"replicas": 10000' in json.dumps(whole)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(manifest(job(), PODS), indent=2) + "\n")
