"""A JobSet of Kubernetes, and a TrainJob of Kubeflow Trainer v2, as JSON for `kubectl apply -f -`.

    print(json.dumps(manifest(job, pods), indent=2))

Each role is an indexed job; pods find each other by their DNS names. A pod that ends with the code
of a usage error fails the JobSet. After any other failure, its job starts the pod again if the
others go on meanwhile; else all pods start again, and resume from the checkpoint. The JobSet has
succeeded when the chief has. JSON, because a YAML dump turns the
string `y` into a boolean. See jobset.sigs.k8s.io, `api/jobset/v1alpha2`, and
trainer.kubeflow.org, `v1alpha1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Task
from tfdist.cluster.environments.jobset import NAME_VARIABLE, ROLE_VARIABLE, TASKS_VARIABLE
from tfdist.errors import EXIT_USAGE
from tfdist.tools.render.pods import (
    Manifest,
    Pods,
    QueuedPods,
    as_list,
    check_name,
    pod_spec,
    resource,
)
from tfdist.tools.render.rendered_job import RenderedJob

# The end of a pod's name, such as RUN-worker-0-9999-abcde.
_SUFFIX = "-abcde"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_ROLE_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"


def manifest(job: RenderedJob, pods: QueuedPods) -> Manifest:
    """A List of the JobSet, its token, and a policy that admits only its own pods.

    Raises:
      UsageError: the name of a pod would be too long.
    """
    spec = _jobset_spec(job, pods)
    jobset = resource("jobset.x-k8s.io/v1alpha2", "JobSet", job.name, spec, queue=pods.queue)
    return as_list(pods, job.name, _JOBSET_LABEL, jobset)


def trainjob(job: RenderedJob, pods: QueuedPods) -> Manifest:
    """The same JobSet as the template of a TrainingRuntime, and a TrainJob that uses it.

    Raises:
      UsageError: as `manifest`.
    """
    group, kind = "trainer.kubeflow.org", "TrainingRuntime"
    template = {"template": {"spec": _jobset_spec(job, pods)}}
    runtime = resource(f"{group}/v1alpha1", kind, job.name, template)
    used = {"runtimeRef": {"apiGroup": group, "kind": kind, "name": job.name}}
    train = resource(f"{group}/v1alpha1", "TrainJob", job.name, used, queue=pods.queue)
    return as_list(pods, job.name, _JOBSET_LABEL, runtime, train)


def _jobset_spec(job: RenderedJob, pods: QueuedPods) -> Manifest:
    counts, chief = job.counts, job.spec.counts.with_chief().tasks()[0]
    pods_of = (f"{job.name}-{role}-0-{count - 1}{_SUFFIX}" for role, count in counts.items())
    check_name(job.name, max(pods_of, key=len))
    tasks = ",".join(f"{role}={count}" for role, count in counts.items())
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [chief.type],
        },
        "failurePolicy": {
            "maxRestarts": job.max_restarts,
            "rules": [
                {
                    "name": "usage-error",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "replicatedJobs": [
            {"name": role, "replicas": 1, "template": {"spec": _job_spec(job, pods, role, tasks)}}
            for role in counts
        ],
    }


def _job_spec(job: RenderedJob, pods: Pods, role: str, tasks: str) -> Manifest:
    count, counts = job.counts[role], job.spec.counts.with_chief()
    cluster = counts.cluster(f"any:{port}" for port in range(1, 1 + counts.in_cluster))
    restarts_alone = job.spec.row.restarts_alone(cluster, Task(role, count - 1))
    environment = [
        {"name": TASKS_VARIABLE, "value": tasks},
        _from_label(NAME_VARIABLE, _JOBSET_LABEL),
        _from_label(ROLE_VARIABLE, _ROLE_LABEL),
    ]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        # Without it, the JobSet starts all pods again.
        "backoffLimit": job.max_restarts if restarts_alone else 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "In", "values": [EXIT_USAGE]},
                }
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                **pod_spec(job, pods, role, environment, "tfdist"),
            }
        },
    }


def _from_label(variable: str, label: str) -> Mapping[str, Any]:
    field = {"fieldPath": f"metadata.labels['{label}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}
