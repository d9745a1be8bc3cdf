"""A job on parameter servers whose workers join and leave while the others train."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT, Copy, Processes, Tasks, copy, run_by_hand
from tfdist.cluster import Cluster
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(200)]

TRAINING = str(ROOT / "scripts" / "benchmarks" / "shards_training.py")
EXAMPLES, EPOCHS = 2_000, 14


def test_workers_join_and_leave(tmp_path: Path) -> None:
    """By hand, as in pods; each gradient is applied once."""
    with hold_ports(5) as ports:
        chief, ps, *workers = (f"127.0.0.1:{port}" for port in ports)
        cluster = Cluster(chief=(chief,), ps=(ps,), worker=tuple(workers))
        arguments = [TRAINING, "--strategy=parameter_server", "--min_workers=1", "--data_shards=9"]
        arguments += [f"--examples={EXAMPLES}", f"--epochs={EPOCHS}", "--work=15"]
        arguments += ["--heartbeat_timeout=6"]
        arguments += [f"--output_dir={tmp_path / 'output'}", f"--result={tmp_path / 'counts.npz'}"]
        tasks: Tasks = {
            str(task): ([sys.executable, *arguments], {"TF_CONFIG": cluster.tf_config(task)})
            for task in cluster.tasks()
        }
        later = tasks.pop("worker:2")
        joined: list[Copy] = []
        signaled: list[int] = []

        def follow(processes: Processes, _: Mapping[str, Path]) -> None:
            epochs = len(lines(tmp_path))
            if epochs >= 2 and not joined:
                with (tmp_path / "later.log").open("w") as output:
                    joined.append(copy(*later, output))
            if joined and not signaled and lines(tmp_path)[-1]["steps_by_worker"]["worker:2"]:
                for name in ("worker:0", "worker:1"):
                    os.kill(processes[name].pid, signal.SIGTERM)
                signaled.append(epochs)

        ended = run_by_hand(tmp_path / "logs", tasks, deadline=150, watch=follow)
        assert joined[0].wait() == 0
    assert {name: end.code for name, end in ended.items()} == dict.fromkeys(tasks, 0)
    for name in ("worker:0", "worker:1"):
        assert "leaves; the other workers read the rest of its data" in ended[name].output
        assert ended[name].time < ended["chief:0"].time
    counts = np.load(tmp_path / "counts.npz")["counts"]
    assert counts.shape == (EPOCHS, EXAMPLES)
    np.testing.assert_array_equal(counts, 1)
    first, *_, last = (line["steps_by_worker"] for line in lines(tmp_path))
    assert first["worker:0"] and first["worker:1"] and not first["worker:2"]
    assert sum(last.values()) == last["worker:2"]


def lines(path: Path) -> list[dict[str, dict[str, int]]]:
    """The lines of metrics.jsonl, one for each epoch."""
    log = path / "output" / "metrics.jsonl"
    return [*map(json.loads, log.read_text().splitlines())] if log.exists() else []
