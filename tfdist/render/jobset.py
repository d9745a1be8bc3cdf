"""A JobSet of Kubernetes, and a TrainJob of Kubeflow Trainer v2, as JSON for `kubectl apply -f -`.

    print(json.dumps(manifest(job, pods), indent=2))

Each role is an indexed job; pods find each other by their DNS names. A pod that ends with the code
of a usage error fails the JobSet; any other failure starts all of them again, and they resume from
the checkpoint. The JobSet has succeeded when the chief has. JSON, because a YAML dump turns the
string `y` into a boolean. See jobset.sigs.k8s.io, `api/jobset/v1alpha2`, and
trainer.kubeflow.org, `v1alpha1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.environments.jobset import NAME_VARIABLE, PORT, ROLE_VARIABLE, TASKS_VARIABLE
from tfdist.errors import EXIT_USAGE, UsageError
from tfdist.render.job import RenderedJob

Manifest = dict[str, Any]

#: The container of each pod, as Kubeflow's TFJob calls it.
CONTAINER = "tensorflow"
#: The longest pod name, RUN-worker-0-9999-abcde, is a DNS label of at most 63 characters.
LABEL = 63
SUFFIX = "-abcde"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_ROLE_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_USER = 65534


@dataclass(frozen=True, kw_only=True)
class Pods:
    """What the pods of a job are made of.

    Attributes:
      image: the container's image.
      claim: the PersistentVolumeClaim that all pods mount.
      mount: the path at which they mount it.
      cpu: the cores of a pod that trains, as Kubernetes writes quantities.
      memory: the memory of every pod.
      gpus: the GPUs of a pod that trains.
      queue: the queue of Kueue; None without Kueue.
    """

    image: str
    claim: str = "shared"
    mount: str = "/shared"
    cpu: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    queue: str | None = None


def manifest(job: RenderedJob, pods: Pods) -> Manifest:
    """The JobSet, and the policy that lets only the job's own pods in, as a List.

    Raises:
      UsageError: the name of a pod would be too long.
    """
    labels = {_QUEUE_LABEL: pods.queue} if pods.queue else {}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **({"labels": labels} if labels else {})},
        "spec": _jobset_spec(job, pods),
    }
    return _list(jobset, _policy(job.name))


def trainjob(job: RenderedJob, pods: Pods) -> Manifest:
    """The same JobSet as the template of a TrainingRuntime, and a TrainJob that uses it.

    Raises:
      UsageError: as `manifest`.
    """
    group = "trainer.kubeflow.org"
    labels = {_QUEUE_LABEL: pods.queue} if pods.queue else {}
    runtime = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": job.name},
        "spec": {"template": {"spec": _jobset_spec(job, pods)}},
    }
    train = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name, **({"labels": labels} if labels else {})},
        "spec": {"runtimeRef": {"apiGroup": group, "kind": "TrainingRuntime", "name": job.name}},
    }
    return _list(runtime, train, _policy(job.name))


def _list(*items: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _jobset_spec(job: RenderedJob, pods: Pods) -> Manifest:
    roles = job.roles
    longest = max(len(f"{job.name}-{role}-0-{count - 1}{SUFFIX}") for role, count in roles.items())
    if longest > LABEL:
        raise UsageError(
            "--name",
            received=job.name,
            accepted=f"a name with at most {len(job.name) - longest + LABEL} characters, because "
            "pod names have it",
            remedy="Choose a shorter name.",
        )
    tasks = ",".join(f"{role}={count}" for role, count in roles.items())
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": ["chief" if "chief" in roles else "worker"],
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
            for role in roles
        ],
    }


def _job_spec(job: RenderedJob, pods: Pods, role: str, tasks: str) -> Manifest:
    count = job.roles[role]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        # The JobSet starts all pods again, and not a job its own.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "In", "values": [EXIT_USAGE]},
                }
            ]
        },
        "template": {"spec": _pod_spec(job, pods, role, tasks)},
    }


def _pod_spec(job: RenderedJob, pods: Pods, role: str, tasks: str) -> Manifest:
    trains = role in ("chief", "worker")
    resources: dict[str, Any] = {"cpu": pods.cpu if trains else "1", "memory": pods.memory}
    if trains and pods.gpus:
        resources["nvidia.com/gpu"] = pods.gpus
    environment = [
        {"name": TASKS_VARIABLE, "value": tasks},
        _from_label(NAME_VARIABLE, _JOBSET_LABEL),
        _from_label(ROLE_VARIABLE, _ROLE_LABEL),
        # The root file system is read-only.
        {"name": "HOME", "value": "/tmp"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_period,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": pods.image,
                "command": list(job.command()),
                "env": environment,
                "ports": [{"name": "tfdist", "containerPort": PORT}],
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "shared", "mountPath": pods.mount},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": pods.claim}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _from_label(variable: str, label: str) -> Mapping[str, Any]:
    field = {"fieldPath": f"metadata.labels['{label}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}


def _policy(name: str) -> Manifest:
    own = {"podSelector": {"matchLabels": {_JOBSET_LABEL: name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
    }
