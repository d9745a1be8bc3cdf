"""Sends the values of a job to MLflow and Weights & Biases: one run per job, over all its restarts.

    trackers = Trackers(["mlflow"], OutputDirectory("/shared/run1"), facts)    # in the chief
    trackers.log({"loss": 0.5}, step=100)
    trackers.finish()

`trackers.json` in the output directory has the id of the run in each tracker. Where a tracker
keeps its runs, under which project and whether it is offline is set by its own environment
variables, such as MLFLOW_TRACKING_URI and WANDB_MODE.

A tracker that fails when the job starts ends the job. A later failure is logged once, and the
training goes on.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.errors import UsageError, log
from tfdist.storage import output_directory
from tfdist.storage.output_directory import OutputDirectory

# What MLflow does not accept in the name of a value.
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)
_LONGEST_MLFLOW_PARAMETER = 6000
# Errors of MLflow about a run that is not in the store, or was deleted there.
_GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


class _Mlflow:
    """A run of MLflow.

    Source: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html

    Args:
      run: the id of the run; None for a new one.
      name: the name of a new run.
      facts: the parameters of a new run, by name.
    """

    remedy = "Set MLFLOW_TRACKING_URI to a store that works, or leave the tracker out."

    def __init__(self, run: str | None, name: str, facts: Mapping[str, str]) -> None:
        import mlflow
        from mlflow.entities import Param

        self._client: Any = mlflow.MlflowClient()
        if run is None or not self._continue(run):
            run = self._client.create_run(self._experiment(), run_name=name).info.run_id
            params = [Param(key, value[:_LONGEST_MLFLOW_PARAMETER]) for key, value in facts.items()]
            self._client.log_batch(run, params=params)
        self.run = run
        self.place = mlflow.get_tracking_uri()
        self._sent: list[Any] = []

    def _continue(self, run: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(run, status="RUNNING")
        except MlflowException as error:
            if error.error_code not in _GONE:
                raise
            log(f"mlflow: run {run} of trackers.json is gone; a new run begins")
            return False
        return True

    def _experiment(self) -> str:
        """The id of the experiment that MLflow's own variables name."""
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME

        if known := MLFLOW_EXPERIMENT_ID.get():
            return str(known)
        name = MLFLOW_EXPERIMENT_NAME.get() or "Default"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, now, step) for name, value in values.items()
        ]
        # MLflow's threads send them, and try again.
        self._sent.append(self._client.log_batch(self.run, metrics=metrics, synchronous=False))

    def finish(self) -> None:
        for sent in self._sent:
            sent.wait()
        self._client.set_terminated(self.run, "FINISHED")


class _Wandb:
    """A run of Weights & Biases; its own process sends the values.

    Source: https://docs.wandb.ai/ref/python/init

    Args:
      run: the id of the run; None for a new one.
      name: the name of the run.
      facts: its configuration, by name.
    """

    remedy = "Call `wandb login`, set WANDB_MODE=offline, or leave the tracker out."

    def __init__(self, run: str | None, name: str, facts: Mapping[str, str]) -> None:
        import wandb

        # Offline, Weights & Biases warns that it cannot ask for the earlier part.
        self._run: Any = wandb.init(id=run, resume="allow", name=name, config=dict(facts))
        # A restart repeats steps, and values of one step come in several parts.
        self._run.define_metric("*", step_metric="step")
        self.run = self._run.id
        self.place = self._run.dir if self._run.offline else self._run.url

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def finish(self) -> None:
        self._run.finish()


# `remedy` is what a person can do if it cannot be started, `run` the id of the run, and `place`
# where a person finds it. `log` does not wait for a server; `finish` waits until all is sent.
_Tracker = _Mlflow | _Wandb
#: By the values of --tracker.
KINDS: Mapping[str, type[_Tracker]] = {"mlflow": _Mlflow, "wandb": _Wandb}


def check_installed(names: Sequence[str]) -> None:
    """Checks that the packages of trackers can be imported.

    Raises:
      UsageError: one cannot.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                "--tracker",
                received=name,
                accepted=f"a tracker whose package is installed ({error})",
                remedy=f"Install it: pip install 'tfdist[{name}]'.",
            ) from None


class Trackers:
    """The runs of a job in several trackers; the chief has this object.

    Args:
      names: those of the trackers.
      output: the output directory.
      facts: what describes the job.

    Raises:
      UsageError: a run cannot be started.
      OutputError: `trackers.json` could not be written.
    """

    def __init__(
        self, names: Sequence[str], output: OutputDirectory, facts: Mapping[str, Any]
    ) -> None:
        self._trackers: dict[str, _Tracker] = {}
        if not names:
            return
        runs = output_directory.last_json_line(output.trackers)
        flat = _flat(facts)
        for name in names:
            tracker = _start(name, runs.get(name), output.path.name, flat)
            log(f"{name}: run {tracker.run} in {tracker.place}")
            self._trackers[name] = tracker
        runs |= {name: tracker.run for name, tracker in self._trackers.items()}
        output_directory.write_text(output.trackers, json.dumps(runs))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends values.

        Args:
          values: by name.
          step: the number of updates of the weights.
        """
        self._each("log", values, step)

    def finish(self) -> None:
        """Marks the runs as finished."""
        self._each("finish")

    def _each(self, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # Each tracker has exceptions of its own.
                del self._trackers[name]
                log(f"warning: {name} failed, and the training goes on without it: {error}")


def _start(name: str, run: str | None, run_name: str, facts: Mapping[str, str]) -> _Tracker:
    try:
        return KINDS[name](run, run_name, facts)
    except Exception as error:  # Each tracker has exceptions of its own.
        raise UsageError(
            "--tracker",
            received=name,
            accepted=f"a tracker that starts ({' '.join(str(error).split())})",
            remedy=KINDS[name].remedy,
        ) from None


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flattens nested facts to texts by name, such as `flags.epochs`."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found
