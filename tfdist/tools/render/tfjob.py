"""A TFJob of Kubeflow's Training Operator v1, as JSON for `kubectl apply -f -`.

    print(json.dumps(manifest(job, pods), indent=2))

The operator gives each pod its TF_CONFIG. It never restarts all pods: the container of a failed
task restarts in its pod, and so do those of the tasks that fail with it. The operator counts the
restarts of all tasks together. It does not distinguish usage errors: its policy
`ExitCode` ends a job whose task was preempted (code 75). See github.com/kubeflow/trainer, branch
release-1.9, `pkg/apis/kubeflow.org/v1` and `pkg/controller.v1/tensorflow`.
"""

from __future__ import annotations

from tfdist.cluster import task_types
from tfdist.cluster.task_types import TFJOB
from tfdist.errors import UsageError
from tfdist.tools.render.pods import Manifest, Pods, as_list, check_name, pod_spec, resource
from tfdist.tools.render.rendered_job import RenderedJob

# The name of the port that TF_CONFIG contains.
_PORT_NAME = "tfjob-port"
_JOB_LABEL = "training.kubeflow.org/job-name"


def manifest(job: RenderedJob, pods: Pods) -> Manifest:
    """A List of the TFJob, its token, and a policy that admits only its own pods.

    Raises:
      UsageError: the name of a pod would be too long, or a TFJob has no tasks of a type.
    """
    replica_types = {name: replica for replica, name in task_types.named_by(TFJOB).items()}
    for role in job.counts:
        if role not in replica_types:
            raise UsageError.choice(f"--{task_types.row(role).flag}", role, replica_types)
    names = (f"{job.name}-{role}-{count - 1}" for role, count in job.counts.items())
    check_name(job.name, max(names, key=len))
    spec = {
        "runPolicy": {
            # The operator's default leaves the ps running when the chief has ended.
            "cleanPodPolicy": "Running",
            "backoffLimit": job.max_restarts * sum(job.counts.values()),
        },
        "tfReplicaSpecs": {
            replica_types[role]: {
                "replicas": count,
                "restartPolicy": "OnFailure",
                "template": {"spec": pod_spec(job, pods, role, (), _PORT_NAME)},
            }
            for role, count in job.counts.items()
        },
    }
    tfjob = resource("kubeflow.org/v1", "TFJob", job.name, spec)
    return as_list(pods, job.name, _JOB_LABEL, tfjob)
