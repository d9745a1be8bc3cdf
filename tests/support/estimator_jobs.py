"""Helpers for the Estimator tests: start jobs, and check their output.

run(tmp_path, "horovod", ["--workers=2"], "--max_steps=12")
assert evaluations(tmp_path)[-1]["global_step"] == 12
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.support.processes import Ended, Tasks, directories, launch
from tfdist.cluster import Cluster, Task

PROGRAM = str(Path(__file__).with_name("estimator_program.py"))
EVALUATOR = Task("evaluator", 0)
EXAMPLES = 48


def run(path: Path, strategy: str, options: list[str], *flags: str, code: int = 0) -> Ended:
    """Runs the program with `tfdist run`; checks its exit code and that it exits after training."""
    begin = time.time()
    ended = launch(
        path, f"--strategy={strategy}", *options, PROGRAM, *directories(path), *flags, deadline=120
    )
    assert ended.code == code, ended.output
    if code == 0 and _training_end(path) > begin:  # Otherwise there was nothing left to train.
        check_exits(path, {"tfdist run": ended})
    return ended


def by_hand(
    cluster: Cluster, arguments: list[str], *more: Task, flags: bool = False, master: bool = False
) -> Tasks:
    """The tasks of a cluster, configured by flags or by TF_CONFIG in either dialect."""
    tasks: Tasks = {}
    for task in (*cluster.tasks(), *more):
        config = cluster.tf_config(task)
        if master:
            config = config.replace('"chief"', '"master"')
            config = json.dumps({**json.loads(config), "environment": "cloud"})
        task_flags = cluster.flags(task) if flags else []
        environment = {} if flags else {"TF_CONFIG": config}
        tasks[str(task)] = ([sys.executable, PROGRAM, *task_flags, *arguments], environment)
    return tasks


def check_exits(path: Path, ended: Mapping[str, Ended]) -> None:
    """Checks that all tasks exited with 0, at most 15 s after the end of training."""
    end = time.monotonic() - (time.time() - _training_end(path))
    for name, process in ended.items():
        assert process.code == 0, f"{name}: {process.output}"
        assert process.time - end < 20, f"{name} exited late: {process.output}"


def _training_end(path: Path) -> float:
    """When the chief wrote the completion marker, as a `time.time`."""
    return (path / "output" / "done.json").stat().st_mtime


def variables(path: Path) -> dict[str, np.ndarray]:
    """The variables of the newest checkpoint, by name."""
    newest = tf.train.latest_checkpoint(str(path / "output"))
    assert newest, "there should be a checkpoint"
    names = [name for name, _ in tf.train.list_variables(newest)]
    read = {name: tf.train.load_variable(newest, name) for name in names}
    return {name: np.asarray(value) for name, value in read.items() if not isinstance(value, bytes)}


def weights(path: Path) -> np.ndarray:
    """The trained weights and the momenta."""
    named = variables(path)
    counters = ("counts", "global_step")
    return np.concatenate(
        [named[name].ravel() for name in sorted(named) if not name.startswith(counters)]
    )


def evaluations(path: Path) -> list[dict[str, float]]:
    lines = (path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_output_files(path: Path) -> None:
    """Checks that the output directory contains only files of the chief and the evaluation."""
    known = {"checkpoint", "done.json", "eval", "eval_metrics.jsonl", "graph.pbtxt", "keras"}
    known |= {"lock.json", "eval_lock.json", "metrics.jsonl", "events.jsonl"}
    for name in os.listdir(path / "output"):
        assert name in known or name.startswith(("model.ckpt-", "events.out.tfevents")), name


def check_speed(ended: Ended, times: np.ndarray, batch: int) -> None:
    """Checks that the last printed examples per second are those of the whole cluster.

    Args:
      ended: the process that printed them.
      times: the times of the cluster's updates, in order, as recorded by the tasks.
      batch: the number of examples per update.
    """
    figure, step = re.findall(r"Average examples/sec: (\S+) .*step = (\d+)", ended.output)[-1]
    updates = int(step) - 1
    recorded = batch * updates / (times[updates] - times[0])
    assert 1 / 1.3 < float(figure) / recorded < 1.3, f"{figure} for {recorded:.1f}"
