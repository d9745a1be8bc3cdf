"""A training job of SageMaker: `SM_HOSTS` and `SM_CURRENT_HOST`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.errors import UsageError


class SageMaker(RankEnvironment):
    """An instance of the job."""

    name = "SageMaker"
    order = 70
    marks = ("SM_HOSTS", "SM_CURRENT_HOST")

    def hosts(self) -> Sequence[str]:
        text = self.environ["SM_HOSTS"]
        try:
            # In the same order everywhere, and algo-2 before algo-10.
            return sorted(map(str, json.loads(text)), key=lambda host: (len(host), host))
        except (ValueError, TypeError, RecursionError):
            raise UsageError(
                "SM_HOSTS",
                received=text[:80],
                accepted="a JSON list of hosts",
                remedy="Unset it, or pass the cluster flags.",
            ) from None

    def rank(self) -> int:
        hosts, own = self.hosts(), self.environ["SM_CURRENT_HOST"]
        if own not in hosts:
            raise UsageError(
                "SM_CURRENT_HOST",
                received=own,
                accepted=", ".join(hosts),
                remedy="Unset it, or pass the cluster flags.",
            )
        return hosts.index(own)

    def job(self) -> str:
        return self.environ.get("TRAINING_JOB_NAME", "")

    def evidence(self) -> str:
        return f"{self.name}, {self.environ['SM_CURRENT_HOST']}"
