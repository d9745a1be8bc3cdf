"""Executions of several short steps are those of one, also if a signal interrupts an epoch."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import (
    ROOT,
    OnceSaved,
    Processes,
    directories,
    launch,
    results,
    run_by_hand,
)
from tfdist.errors import EXIT_PREEMPTED

pytestmark = [
    pytest.mark.stacks("2.15", "newest", horovod=("2.15",)),
    pytest.mark.timeout(400),
]

PROGRAM = str(ROOT / "tests" / "support" / "short_steps_program.py")
STEPS = 240


@pytest.mark.parametrize(
    "strategy",
    [pytest.param("multi_worker_mirrored", marks=pytest.mark.stacks("newest")), "horovod"],
)
def test_executions_of_several_steps_are_those_of_one(strategy: str, tmp_path: Path) -> None:
    single, several = tmp_path / "single", tmp_path / "several"
    job = [f"--strategy={strategy}", "--workers=2", PROGRAM]
    ended = launch(single, *job, "--single", *directories(single), deadline=120)
    assert ended.code == 0, ended.output

    def interrupt(processes: Processes) -> None:
        os.kill(processes["tfdist"].pid, signal.SIGTERM)

    command = [sys.executable, "-m", "tfdist", "run", *job, *directories(several)]
    watch = OnceSaved(several, 2, interrupt)
    first = run_by_hand(several, {"tfdist": (command, {})}, deadline=120, watch=watch)["tfdist"]
    assert first.code == EXIT_PREEMPTED, first.output
    saved = re.search(r"saved after step (\d+) of epoch", first.output)
    assert saved and int(saved[1]) % STEPS, first.output
    second = launch(several, *job, *directories(several), deadline=120)
    assert second.code == 0, second.output

    log = [json.loads(line) for line in (several / "output" / "events.jsonl").open()]
    assert [event["event"] for event in log] == ["start", "preempted", "start", "complete"]
    assert log[0]["step"] == 0 and log[0]["strategy"] == strategy
    assert log[1]["step"] == log[2]["step"] and log[1]["step"] % STEPS == int(saved[1]) % STEPS
    assert log[3]["step"] == 2 * STEPS

    expected, found = results(single), results(several)
    assert set(expected) == set(found) == {"worker-0", "worker-1"}
    for name, task in found.items():
        assert task["steps_per_execution"] >= 5
        assert expected[name]["steps_per_execution"] == 1
        np.testing.assert_array_equal(task["weights"], expected[name]["weights"])
        np.testing.assert_allclose(task["validated"], expected[name]["validated"], rtol=1e-6)
        # Not the epoch of the signal, whose metrics cover only its remainder.
        np.testing.assert_allclose(task["losses"][-1], expected[name]["losses"][-1], rtol=1e-6)
        if strategy == "multi_worker_mirrored":
            check_all_reduces([str(kind) for kind in task["all_reduces"]])


def check_all_reduces(traced: list[str]) -> None:
    """In each step, the tasks send only gradients, and the share and the examples of the batch; in
    the last of an execution, also results."""
    # Of the loss and a metric: their means, or the totals and counts.
    results = "float32 2" if keras_is_3() else "float32 4"
    assert set(traced) == {"float32 99", results}
    # Keras 3 traces both as one function, without the results.
    if not keras_is_3():
        assert ("float32 99", "float32 99") in pairwise(traced)
    # The tasks do not ask each other whether there is a batch.
    assert not [kind for kind in traced if kind.startswith("int64")]
