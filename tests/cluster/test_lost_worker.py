"""A parameter-server job continues when a worker is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    Processes,
    by_flags,
    checkpoints,
    cluster_of,
    directories,
    results,
    run_by_hand,
)
from tfdist.launch.local import hold_ports

# Keras 2, and the newer TensorFlow; in tf_keras other tests train with both.
pytestmark = pytest.mark.stacks("2.15", "2.21")


@pytest.mark.timeout(200)
def test_training_continues_without_a_lost_worker(tmp_path: Path) -> None:
    epochs = 25
    killed: list[int] = []

    def kill_worker_1(processes: Processes, _: Mapping[str, Path]) -> None:
        if len(checkpoints(tmp_path)) == 5 and not killed:
            os.kill(processes["worker:1"].pid, signal.SIGKILL)
            killed.append(1)

    with hold_ports(4) as ports:
        cluster = cluster_of(ports, chief=1, workers=2, ps=1)
        arguments = [*directories(tmp_path), f"--epochs={epochs}", "--heartbeat_timeout=5"]
        ended = run_by_hand(
            tmp_path / "logs", by_flags(cluster, arguments), deadline=180, watch=kill_worker_1
        )
    assert ended["worker:1"].code == -signal.SIGKILL
    for name in ("chief:0", "worker:0", "ps:0"):
        assert ended[name].code == 0, f"{name}: {ended[name].output}"
    # The chief waits for the lost worker once, not in every later epoch.
    assert ended["chief:0"].output.count("which makes no steps") == 1
    (found,) = results(tmp_path).values()
    np.testing.assert_array_equal(found["counts"][0], 1)
    np.testing.assert_array_equal(found["counts"][-1][0::2], 1)
    lines = (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, epochs + 1))
