"""A training job of SageMaker: `SM_HOSTS` and `SM_CURRENT_HOST`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.errors import UsageError


class SageMaker(RankEnvironment):
    """An instance of the job."""

    name = "SageMaker"
    marks = ("SM_CURRENT_HOST", "SM_HOSTS")
    job_variable = "TRAINING_JOB_NAME"

    def hosts(self) -> Sequence[str]:
        try:
            # In the same order everywhere, and algo-2 before algo-10.
            hosts = map(str, json.loads(self.environ["SM_HOSTS"]))
            return sorted(hosts, key=lambda host: (len(host), host))
        except (ValueError, TypeError, RecursionError):
            raise self.error("SM_HOSTS", "a JSON list of hosts") from None

    def rank(self) -> int:
        hosts, own = self.hosts(), self.environ["SM_CURRENT_HOST"]
        if own not in hosts:
            raise UsageError.choice("SM_CURRENT_HOST", own, hosts)
        return hosts.index(own)

    def evidence(self) -> str:
        return f"{self.name}, {self.environ['SM_CURRENT_HOST']}"
