"""Serves the metrics of a job to Prometheus. Needs prometheus_client: the extra `prometheus`.

    serve("127.0.0.1", 9100, reporter.activity, peers=2)      # then GET /metrics, until the end

The numbers come from what the chief says of itself and from the last line of its metrics log, when
they are asked for, so that nothing is done in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.coordination.liveness.activity import Activity
from tfdist.errors import UsageError, log, os_error_is_usage_error
from tfdist.storage.output_directory import NO_METRICS, OutputDirectory, last_json_line


def serve(host: str, port: int, activity: Activity, peers: int) -> None:
    """Serves in a thread, until the process ends.

    Args:
      host: the address of an interface of this machine.
      port: the port.
      activity: what the chief does.
      peers: the number of tasks that make each step together.

    Raises:
      UsageError: prometheus_client is not installed, or the address cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.process_collector import ProcessCollector
    except ImportError:
        raise UsageError(
            "--prometheus_port",
            received=port,
            accepted="with prometheus_client",
            remedy="Install it: pip install 'tfdist[prometheus]'.",
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(activity, peers))
    accepted = "an address of the chief's machine that is free"
    remedy = "Choose another --prometheus_port or --prometheus_host."
    with os_error_is_usage_error("--prometheus_port", f"{port} on {host}", accepted, remedy):
        start_http_server(port, addr=host, registry=registry)
    log(f"metrics for Prometheus: http://{host}:{port}/metrics")


class _Collector:
    """The metrics of a job at the moment of a request."""

    def __init__(self, activity: Activity, peers: int) -> None:
        self._activity = activity
        self._peers = peers

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self._activity.state
        steps = state.resumed + state.steps
        examples = steps * state.examples_per_step * self._peers
        yield CounterMetricFamily("tfdist_steps", "Updates of the weights.", value=steps)
        yield CounterMetricFamily("tfdist_examples", "Examples of these updates.", value=examples)
        gauges = {
            "tfdist_goal_steps": ("The updates of the whole training; 0: unknown.", state.goal),
            "tfdist_epoch": ("The current epoch, from 1.", state.epoch),
            "tfdist_epochs": ("The epochs of the training; 0: unknown.", state.epochs),
            "tfdist_loss": ("The mean loss of the epoch so far; -Inf: unknown.", state.loss),
            "tfdist_last_step_timestamp_seconds": ("The time of the last step.", state.last_step),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(name, meaning, value=value)
        doing = GaugeMetricFamily("tfdist_doing", "What the chief does: 1.", labels=["activity"])
        doing.add_metric([state.doing], 1)
        yield doing
        last = GaugeMetricFamily(
            "tfdist_metric", "Of the last epoch, as in the metrics log.", labels=["name"]
        )
        for name, value in last_metrics(state.output).items():
            last.add_metric([name], value)
        yield last


def last_metrics(output: str) -> Mapping[str, float]:
    """The metrics of the last epoch of the training in an output directory, by name."""
    if not output:
        return {}
    directory = OutputDirectory(output)
    last, evaluated = map(last_json_line, (directory.metrics, directory.eval_metrics))
    # An Estimator's own log has no metrics but the loss.
    found = last if "epoch" in last else {**last, **evaluated}
    return {
        name: float(value)
        for name, value in found.items()
        if name not in NO_METRICS and isinstance(value, int | float)
    }
