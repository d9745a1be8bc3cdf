"""What all manifests for Kubernetes share: the pods, a token, a network policy, a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import task_types
from tfdist.cluster.environments.jobset import PORT
from tfdist.config.options import Options, option
from tfdist.coordination.seal import TOKEN_VARIABLE, new_token
from tfdist.errors import refuse
from tfdist.tools.render.rendered_job import RenderedJob

Manifest = dict[str, Any]

# The container of each pod, as Kubeflow's TFJob calls it.
_CONTAINER = "tensorflow"
# A DNS label has at most so many characters.
_LABEL = 63
_USER = 65534
# The job's token in its Secret.
_TOKEN_KEY = "token"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, kw_only=True)
class Pods(Options):
    """The settings of a job's pods.

    Attributes:
      token: the job's token.

    Raises:
      UsageError: there is no image.
    """

    image: str | None = option(None, "the image of the containers")
    claim: str = option("shared", "the PersistentVolumeClaim that all pods mount")
    mount: str = option("/shared", "the path at which they mount it")
    cpu: str = option("2", "the cores of a pod that trains, as Kubernetes writes quantities")
    memory: str = option("4Gi", "the memory of a pod")
    gpus: int = option(0, "the GPUs of a pod that trains", least=0)
    token: str = field(default_factory=new_token, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.image:
            refuse({"image": self.image}, "the image of the containers", "Name it.")


@dataclass(frozen=True, kw_only=True)
class QueuedPods(Pods):
    """Pods that may be in a queue. (Kueue deprecates TFJobs, and leaves them out by default.)"""

    queue: str | None = option(None, "the queue of Kueue")


def check_name(name: str, longest: str) -> None:
    """Checks that the names of a job's pods and services are DNS labels of RFC 1035.

    Args:
      name: the job's name.
      longest: the longest name that contains it.

    Raises:
      UsageError: it is too long, or begins with a digit.
    """
    if len(longest) > _LABEL or name[0].isdigit():
        most = len(name) - len(longest) + _LABEL - 1
        what = f"a letter and at most {most} letters, digits and hyphens"
        refuse({"name": name}, f"{what}, as pods and services accept", "Choose another name.")


def pod_spec(
    job: RenderedJob, pods: Pods, role: str, environment: Sequence[Mapping[str, Any]], port: str
) -> Manifest:
    """The specification of a pod.

    Args:
      job: the job.
      pods: what its pods are made of.
      role: the role of this pod.
      environment: variables by which it finds its place.
      port: the name of the container's port.
    """
    trains = task_types.row(role).trains
    resources: dict[str, Any] = {"cpu": pods.cpu if trains else "1", "memory": pods.memory}
    if trains and pods.gpus:
        resources["nvidia.com/gpu"] = pods.gpus
    return {
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
                "name": _CONTAINER,
                "image": pods.image,
                "command": list(job.command()),
                # The root file system is read-only.
                "env": [
                    *environment,
                    {"name": "HOME", "value": "/tmp"},
                    {"name": "PYTHONUNBUFFERED", "value": "1"},
                    {
                        "name": TOKEN_VARIABLE,
                        "valueFrom": {"secretKeyRef": {"name": job.name, "key": _TOKEN_KEY}},
                    },
                ],
                "ports": [{"name": port, "containerPort": PORT}],
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


def resource(
    api: str, kind: str, name: str, spec: Manifest, *, queue: str | None = None
) -> Manifest:
    """A manifest of one resource, in a queue of Kueue if one is given."""
    labels = {"labels": {_QUEUE_LABEL: queue}} if queue else {}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **labels}, "spec": spec}


def as_list(pods: Pods, name: str, label: str, *items: Manifest) -> Manifest:
    """Joins the manifests of a job in a List, with a token and a policy that admits only its pods.

    Args:
      pods: what its pods are made of.
      name: the job's name.
      label: the label that its pods have, with this name as the value.
      items: the other manifests.
    """
    token = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {_TOKEN_KEY: pods.token},
    }
    all_items = [token, *items, _own_pods_policy(name, label)]
    return {"apiVersion": "v1", "kind": "List", "items": all_items}


def _own_pods_policy(name: str, label: str) -> Manifest:
    own = {"podSelector": {"matchLabels": {label: name}}}
    spec = {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    return resource("networking.k8s.io/v1", "NetworkPolicy", name, spec)
