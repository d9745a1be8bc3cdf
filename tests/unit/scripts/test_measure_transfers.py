"""The tasks and the rows of scripts/benchmarks/measure_transfers.py.

`tests/cluster/test_transfers.py` runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.benchmarks.measure_transfers import Traffic, Training, compared
from tests.support.namespaces import Machine

pytestmark = pytest.mark.stacks("2.15", "newest")

MACHINES = [Machine(f"machine-{n}", f"10.99.0.{n + 1}") for n in range(4)]


def commands(training: Training) -> dict[str, list[str]]:
    tasks = training.tasks(MACHINES, Path("/output"), steps=7)
    return {name: list(command) for name, (command, _) in tasks.items()}


def test_each_task_runs_on_its_own_machine() -> None:
    training = Training("parameter_server", workers=3, ps=1, flags=("--sync",), width=16)
    found = commands(training)
    assert list(found) == ["worker:0", "worker:1", "worker:2", "ps:0"]
    assert [command[2] for command in found.values()] == [each.name for each in MACHINES]
    assert {"--strategy=parameter_server", "--sync", "--width=16", "--steps=7"} < set(found["ps:0"])


def test_a_pipeline_is_trained_as_it_is_planned() -> None:
    found = commands(Training("in_graph", workers=4, stages=2))
    assert {"--strategy=in_graph", "--stages=2", "--microbatches=8"} < set(found["worker:3"])


def test_the_bytes_of_the_busiest_task_and_of_all() -> None:
    training = Training("parameter_server", workers=2, ps=1, width=16, layers=1)
    few = Traffic({"worker:0": 10, "worker:1": 10, "ps:0": 100}, dict.fromkeys(["ps:0"], 50))
    many = Traffic({"worker:0": 30, "worker:1": 50, "ps:0": 500}, dict.fromkeys(["ps:0"], 90))
    found = compared(training.planned(), many.per_step_after(few, steps=20))
    weights = 4 * 16 * 16
    assert found == [(20, 2 * weights), (2, 2 * weights), (pytest.approx(23), 4 * weights)]
