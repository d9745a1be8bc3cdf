"""Reports the progress of a training to Kubeflow Trainer, as the status of its TrainJob.

    report(os.environ, reporter.activity)      # once, in the chief

With its feature gate TrainJobStatus, Kubeflow Trainer 2.2 gives each pod an address, a certificate
and a token, in environment variables (kubeflow/trainer, docs/user-guides/trainjob-progress.md). A
report that fails does not fail the job.
"""

from __future__ import annotations

import atexit
import json
import math
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tfdist.coordination.liveness.activity import Activity, State
from tfdist.errors import log
from tfdist.training.records.prometheus import last_metrics

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"

# Between two reports, as Kubeflow asks; and for the answer to one.
_PERIOD_SECONDS, _ANSWER_SECONDS = 5.0, 5.0
_MOST_METRICS = 256


def report(environ: Mapping[str, str], activity: Activity) -> None:
    """Reports every five seconds in a thread, and at the end of the process.

    Without an address in the environment, it reports nothing.

    Args:
      environ: the environment of this process.
      activity: what the chief does.
    """
    if URL_VARIABLE in environ:
        reports = _Reports(environ, activity)
        threading.Thread(target=reports.repeat, name="trainjob-status", daemon=True).start()
        atexit.register(reports.send)


class _Reports:
    """Sends what has changed since the last report."""

    def __init__(self, environ: Mapping[str, str], activity: Activity) -> None:
        self._environ = environ
        self._activity = activity
        # The time and the steps when the first of them was seen.
        self._begin: tuple[float, int] | None = None
        self._sent: Mapping[str, Any] = {}
        self._has_failed = False

    def repeat(self) -> None:
        """Sends a report every five seconds."""
        while True:
            self.send()
            time.sleep(_PERIOD_SECONDS)

    def send(self) -> None:
        """Sends a report if there is news; logs the first failure."""
        status = self._status(self._activity.state)
        if status == self._sent:
            return
        content = {"trainerStatus": {**status, "lastUpdatedTime": datetime.now(UTC).isoformat()}}
        try:
            # Kubernetes replaces the token from time to time.
            token = Path(self._environ[TOKEN_VARIABLE]).read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            url, data = self._environ[URL_VARIABLE], json.dumps(content).encode()
            context = ssl.create_default_context(cafile=self._environ.get(CERTIFICATE_VARIABLE))
            request = Request(url, data, headers)
            with urlopen(request, timeout=_ANSWER_SECONDS, context=context):
                self._sent = status
        except (OSError, HTTPException, KeyError, ValueError) as error:
            if not self._has_failed:
                log(f"warning: Kubeflow did not take the status of the TrainJob: {error!r}")
            self._has_failed = True

    def _status(self, state: State) -> dict[str, Any]:
        """The fields of Kubeflow's `TrainerStatus`, without the time."""
        metrics = dict(last_metrics(state.output))
        if state.epoch:
            metrics["epoch"] = state.epoch
        if math.isfinite(state.loss):
            metrics["loss"] = state.loss
        named = [{"name": name, "value": f"{value:g}"} for name, value in metrics.items()]
        status: dict[str, Any] = {"metrics": named[:_MOST_METRICS]}
        done = state.resumed + state.steps
        if state.goal:
            status["progressPercentage"] = min(100, 100 * done // state.goal)
            if self._begin is None and state.steps:
                self._begin = time.monotonic(), done
            if self._begin and done > self._begin[1]:
                seconds = (time.monotonic() - self._begin[0]) / (done - self._begin[1])
                status["estimatedRemainingSeconds"] = round(max(0, state.goal - done) * seconds)
        return status
