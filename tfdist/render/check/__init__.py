"""Finds mistakes in a manifest of `tfdist render`, also after it was edited.

    problems(json.load(file))      # ["JobSet spec.replicatedJobs[0].name: received 'PS'; …"]

The schemas of Kubernetes (the package kubernetes-validate, strict) check what Kubernetes itself
has: pods, jobs, secrets and network policies. The fields of the other kinds, and the rules of their
webhooks, are in this package.
"""

from __future__ import annotations

from typing import Any

from tfdist.render.check.fields import kubernetes, problem
from tfdist.render.check.jobset import jobset, train_job, training_runtime
from tfdist.render.check.tfjob import tfjob

_CHECKS = {
    "JobSet": jobset,
    "TrainingRuntime": training_runtime,
    "TrainJob": train_job,
    "TFJob": tfjob,
    "NetworkPolicy": kubernetes,
    "Secret": kubernetes,
}


def problems(manifest: Any) -> list[str]:
    """What is wrong with a manifest, one sentence each; empty if nothing was found.

    Raises:
      UsageError: kubernetes-validate is not installed.
    """
    if not isinstance(manifest, dict):
        return [f"manifest: received {type(manifest).__name__}; accepted: a JSON object"]
    kind = str(manifest.get("kind"))
    if kind == "List":
        items = manifest.get("items")
        return [each for item in items or [] for each in problems(item)]
    if kind not in _CHECKS:
        return [problem("kind", manifest.get("kind"), ", ".join(_CHECKS))]
    return [f"{kind} {each}" for each in _CHECKS[kind](manifest)]
