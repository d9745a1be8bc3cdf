"""The metrics that the chief serves to Prometheus, read with prometheus_client's own parser."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import ROOT, directories, results, run_by_hand
from tfdist.config.flags import JobFlags
from tfdist.coordination.liveness.activity import Activity
from tfdist.errors import UsageError
from tfdist.tools.launch.local import hold_ports
from tfdist.training.records import prometheus

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(200)]

PROGRAM = str(ROOT / "tests" / "support" / "program.py")


def read(port: int) -> dict[str, float]:
    """The values by name and label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
        if "Content-Length" not in answer.headers:
            raise ConnectionError("The process ended while it answered.")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def port() -> Iterator[int]:
    with hold_ports(1) as (port,):
        yield port


def test_the_metrics_are_those_of_the_record_and_of_the_last_epoch(
    port: int, tmp_path: Path
) -> None:
    record = Activity("worker:0")
    prometheus.serve("127.0.0.1", port, record, peers=2)
    found = read(port)
    assert found["tfdist_steps_total"] == 0 and found["tfdist_doing starting"] == 1
    assert found["process_cpu_seconds_total"] > 0

    record.describe(output=str(tmp_path), epoch=2, epochs=3, resumed=5, goal=30)
    record.describe(examples_per_step=16.0, loss=0.25)
    record.made(7)
    lines = ['{"epoch": 1, "time": 1.0, "loss": 9.0, "accuracy": 0.5, "f1": [1.0]}', '{"epo']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = read(port)
    assert found["tfdist_steps_total"] == 12
    assert found["tfdist_examples_total"] == 12 * 16 * 2
    assert (found["tfdist_epoch"], found["tfdist_epochs"]) == (2, 3)
    assert (found["tfdist_goal_steps"], found["tfdist_loss"]) == (30, 0.25)
    assert found["tfdist_last_step_timestamp_seconds"] > 1e9
    metrics = {name: value for name, value in found.items() if name.startswith("tfdist_metric ")}
    assert metrics == {"tfdist_metric loss": 9.0, "tfdist_metric accuracy": 0.5}

    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "eval_metrics.jsonl").write_text('{"global_step": 7, "auc": 0.75}\n')
    assert read(port)["tfdist_metric auc"] == 0.75, "of an Estimator"


def test_the_chief_alone_serves_while_it_trains(port: int, tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    def watch(processes: object, paths: object) -> None:
        with suppress(OSError, HTTPException):
            seen.append(read(port))

    command = [sys.executable, "-m", "tfdist", "run", "--workers=2", f"--prometheus_port={port}"]
    command += [PROGRAM, "--rest=0.4", "--epochs=3", *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=150, watch=watch)["tfdist"]
    assert ended.code == 0, ended.output
    assert ended.output.count(f"metrics for Prometheus: http://127.0.0.1:{port}/metrics") == 1
    steps = [found["tfdist_steps_total"] for found in seen]
    assert steps == sorted(steps) and len(set(steps)) > 2, "they are read while it trains"
    assert len(results(tmp_path)) == 2


def test_an_address_that_cannot_be_used_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="Address already in use") as raised:
            prometheus.serve("127.0.0.1", port, Activity("worker:0"), peers=1)
    assert (raised.value.field, raised.value.received) == (
        "--prometheus_port",
        f"{port} on 127.0.0.1",
    )
    with pytest.raises(UsageError, match="with --prometheus_port"):
        JobFlags.of(prometheus_host="0.0.0.0")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'tfdist\[prometheus\]'"):
        prometheus.serve("127.0.0.1", 9, Activity("worker:0"), peers=1)
