"""The manifest of a TFJob.

python -m tests.unit.tools.render.test_tfjob     # writes the golden file again
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kubernetes_validate import ValidationError

from tests.support.manifests import validate
from tests.unit.tools.render.test_jobset import JOBS, PODS, job
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.errors import UsageError
from tfdist.tools.render.pods import Pods
from tfdist.tools.render.tfjob import manifest

pytestmark = pytest.mark.stacks("newest")

GOLDEN = Path(__file__).parent / "golden" / "tfjob.json"


def test_the_golden_file() -> None:
    assert manifest(job(), PODS) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("roles", JOBS)
def test_a_rendered_manifest_is_valid(roles: str) -> None:
    validate(manifest(JOBS[roles], PODS))
    validate(manifest(JOBS[roles], Pods(image="example.org/train:1")))


@pytest.mark.parametrize("field", ["tfReplicaSpecs", "backoffLimit", "restartPolicy", "containers"])
def test_an_unknown_field_is_not_valid(field: str) -> None:
    text = json.dumps(manifest(job(), PODS))
    assert f'"{field}"' in text
    with pytest.raises((AssertionError, ValidationError)):
        validate(json.loads(text.replace(f'"{field}"', f'"{field}1"')))


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


def test_a_name_that_is_too_long_is_refused() -> None:
    longest = "a" * 51
    assert len(f"{longest}-evaluator-0") == 63
    validate(manifest(job(longest), PODS))
    with pytest.raises(UsageError, match="a letter and at most 50 letters"):
        manifest(job(longest + "a"), PODS)


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    started = time.process_time()
    whole = manifest(job(workers=10_000), PODS)
    assert time.process_time() - started < 1
    assert '"replicas": 10000' in json.dumps(whole)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(manifest(job(), PODS), indent=2) + "\n")
