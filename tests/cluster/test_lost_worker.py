"""A parameter-server job continues when a worker is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import (
    Copy,
    Processes,
    by_flags,
    checkpoints,
    cluster_of,
    copy,
    directories,
    launch,
    results,
    run_by_hand,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = pytest.mark.stacks("newest")


@pytest.mark.timeout(200)
def test_the_others_train_on_the_data_of_a_lost_worker(tmp_path: Path) -> None:
    """And one that comes back is used, although another one that was lost does not."""
    epochs = 40
    killed: list[str] = []

    with hold_ports(5) as ports:
        cluster = cluster_of(ports, chief=1, workers=3, ps=1)
        tasks = by_flags(
            cluster, [*directories(tmp_path), f"--epochs={epochs}", "--data_shards=7", "--rest=0.5"]
        )

        def kill(processes: Processes, _: Mapping[str, Path]) -> None:
            saved = len(checkpoints(tmp_path))
            for name, since in (("worker:1", 3), ("worker:2", 5)):
                if saved >= since and name not in killed:
                    os.kill(processes[name].pid, signal.SIGKILL)
                    killed.append(name)
            if "again" not in killed and {"worker:1", "worker:2"} <= {*killed}:
                killed.append("again")
                with (tmp_path / "again.log").open("w") as output:
                    again.append(copy(*tasks["worker:2"], output))

        again: list[Copy] = []
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=150, watch=kill)
        assert again[0].wait() == 0
    for name in ("worker:1", "worker:2"):
        assert ended[name].code == -signal.SIGKILL
    for name in ("chief:0", "worker:0", "ps:0"):
        assert ended[name].code == 0, f"{name}: {ended[name].output}"
    (found,) = results(tmp_path).values()
    # A metric is updated before the gradients are sent, and may count the batch of each
    # interrupted step once more.
    assert found["counts"].min() == 1
    assert (found["counts"] - 1).sum() <= 2 * 4
    lines = map(json.loads, (tmp_path / "output" / "metrics.jsonl").read_text().splitlines())
    steps = [line["steps_by_worker"] for line in lines]
    assert len(steps) == epochs and len({sum(each.values()) for each in steps}) == 1
    assert steps[0]["worker:1"] > 0 == steps[-1]["worker:1"]
    assert steps[-1]["worker:2"] > 0


TRACING = """
import json, os, pathlib, signal, threading
import tfdist
import tensorflow as tf
from tensorflow.python.framework import op_def_library

here = pathlib.Path(__file__).parent
tracing = set()

def add_operation(*args, own=op_def_library._apply_op_helper, **kwargs):
    tracing.add(threading.current_thread().name)
    return own(*args, **kwargs)

def build_model(job):
    model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(1e-9), "mse")
    return model

def train_input(context):
    data = tf.data.Dataset.range(400)
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.shuffle(100, seed=3, reshuffle_each_iteration=True)
    return data.map(lambda n: (tf.fill([2], tf.cast(n, tf.float32)), 1.0)).batch(2)

def kill_worker_1(epoch, logs):
    if epoch == 1:
        os.kill(int((here / "worker:1").read_text()), signal.SIGKILL)

@tfdist.main
def main(job):
    history = job.fit(
        build_model, train_input, epochs=5, output_dir=str(here / "output"),
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=kill_worker_1)],
    )
    print("traced by", *tracing, flush=True)
    print("updates", int(history.model.optimizer.iterations.numpy()), flush=True)

if __name__ == "__main__":
    op_def_library._apply_op_helper = add_operation
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    (here / f"{task['type']}:{task['index']}").write_text(str(os.getpid()))
    tfdist.run(main)
"""


def test_a_worker_that_returns_repeats_no_step_and_one_thread_traces(
    tmp_path: Path,
) -> None:
    """Two threads that traced at the same time have crashed the chief."""
    (tmp_path / "train.py").write_text(TRACING)
    flags = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief"]
    flags += ["--max_restarts=1", "--restart_delay=0.1"]
    ended = launch(tmp_path, *flags, str(tmp_path / "train.py"), deadline=110)
    assert ended.code == 0, ended.output
    assert "worker:1 was killed by signal 9 (Killed), restart 1 of 1" in ended.output
    (traced_by,) = [line for line in ended.output.splitlines() if "traced by" in line]
    # `strategy.run` traces in a thread for which the main thread waits.
    names = [re.sub(r"Thread-\d+", "Thread", name) for name in traced_by.split("by ")[1].split()]
    assert {"MainThread"} <= set(names) <= {"MainThread", "Thread"}
    (updates,) = [line for line in ended.output.splitlines() if "updates" in line]
    # 200 in each epoch. The counter is updated before the gradients are sent.
    assert int(updates.split()[-1]) in (1000, 1001)
