"""Jobs whose tasks are started by hand, one process each, and exit without a launcher."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support import processes
from tests.support.processes import (
    PROGRAM,
    by_flags,
    by_tf_config,
    cluster_of,
    directories,
    results,
    run_by_hand,
)
from tfdist.cluster import Task
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(330)]

EVALUATOR = Task("evaluator", 0)

# Starts new processes, as a user does. Only some tests use it, because importing TensorFlow takes
# most of their time.
run_new_by_hand = partial(run_by_hand, copies=False)


def check_parameter_server_job(path: Path, ended: dict[str, processes.Ended], chief: str) -> None:
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
        if name.startswith(("ps", "worker")):
            assert task.time - ended[chief].time < 20, f"{name} exited late"
    (found,) = results(path).values()
    np.testing.assert_array_equal(found["counts"], 1)
    assert found["evaluated_seen"] == 11
    lines = (path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert json.loads(lines[-1])["loss"] == pytest.approx(float(found["evaluated_loss"]), rel=1e-5)


def check_only_the_chief_writes(output: Path) -> None:
    names = {path.name for path in output.iterdir()}
    files = {"metrics.jsonl", "events.jsonl", "done.json", "lock.json"}
    assert names == {"checkpoints", "logs", "saved_model"} | files
    checkpoints = {path.name for path in (output / "checkpoints").iterdir()}
    assert checkpoints == {"checkpoint"} | {
        f"ckpt-{step}.{part}" for step in (5, 10) for part in ("index", "data-00000-of-00001")
    }
    assert len(list((output / "logs" / "train").iterdir())) == 1


def test_a_parameter_server_job_with_a_chief(tmp_path: Path) -> None:
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, chief=1, workers=2, ps=1)
        tasks = by_flags(cluster, directories(tmp_path), EVALUATOR)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=150)
    check_parameter_server_job(tmp_path, ended, "chief:0")


def test_a_parameter_server_job_with_worker_0_as_chief(tmp_path: Path) -> None:
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, workers=2, ps=2)
        arguments = [*directories(tmp_path), "--variable_partitions=2", "--units=40000"]
        ended = run_by_hand(
            tmp_path / "logs", by_flags(cluster, arguments, EVALUATOR), deadline=150
        )
    check_parameter_server_job(tmp_path, ended, "worker:0")
    assert results(tmp_path)["worker-0"]["partitioned"]


def test_an_all_reduce_job_with_a_chief(tmp_path: Path) -> None:
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, chief=1, workers=1)
        arguments = [*directories(tmp_path), "--all_reduce=ring"]
        ended = run_by_hand(
            tmp_path / "logs", by_tf_config(cluster, arguments, EVALUATOR), deadline=150
        )
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    chief, worker = results(tmp_path).values()
    np.testing.assert_array_equal(chief["weights"], worker["weights"])
    np.testing.assert_array_equal(chief["counts"], 1)
    lines = (tmp_path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["loss"] == pytest.approx(float(chief["evaluated_loss"]), rel=1e-5)


def test_the_older_dialect_with_a_master(tmp_path: Path) -> None:
    with hold_ports(2) as ports:
        addresses = {"master": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
        tasks: processes.Tasks = {
            f"{name}:0": (
                [sys.executable, PROGRAM, *directories(tmp_path)],
                {
                    "TF_CONFIG": json.dumps(
                        {
                            "cluster": addresses,
                            "task": {"type": name, "index": 0},
                            "environment": "cloud",
                        }
                    )
                },
            )
            for name in addresses
        }
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=150)
    assert {name: task.code for name, task in ended.items()} == {"master:0": 0, "worker:0": 0}
    assert set(results(tmp_path)) == {"chief-0", "worker-0"}
    check_only_the_chief_writes(tmp_path / "output")


def test_ranks_start_in_any_order_and_synchronize_weights_and_statistics(tmp_path: Path) -> None:
    """The model has no input shape and a custom train step."""
    flags = ["--strategy=horovod", "--noinput_layer", "--batch_norm", "--validate"]
    flags.append("--own_train_step")
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        tasks = by_tf_config(cluster, [*directories(tmp_path), *flags])
        # Rank 0 starts when rank 1 has logged that it waits for rank 0.
        script, log = tmp_path / "late.sh", tmp_path / "logs" / "worker-1.log"
        script.write_text(
            f'until grep -q "waits for worker:0" {log}; do sleep 0.1; done; exec "$@"'
        )
        command, environment = tasks["worker:0"]
        tasks["worker:0"] = (["sh", str(script), *command], environment)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=150)
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    first, second = results(tmp_path).values()
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["counts"] + second["counts"], 1)
    check_only_the_chief_writes(tmp_path / "output")
    # The last validation uses the same statistics.
    assert first["val_losses"][-1] == pytest.approx(float(first["evaluated_loss"]), rel=1e-6)


def test_horovodrun(tmp_path: Path) -> None:
    horovodrun = Path(sys.executable).with_name("horovodrun")
    every_core = f"0-{(os.cpu_count() or 1) - 1}"
    command = ["taskset", "-c", every_core, str(horovodrun), "-np", "2", "--gloo"]
    command += ["-H", "localhost:2", sys.executable, PROGRAM]
    path = os.pathsep.join([str(horovodrun.parent), os.environ["PATH"]])
    ended = run_new_by_hand(
        tmp_path / "logs",
        {"horovodrun": ([*command, *directories(tmp_path)], {"PATH": path})},
        deadline=150,
    )["horovodrun"]
    assert ended.code == 0, ended.output
    first, second = results(tmp_path).values()
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(first["counts"] + second["counts"], 1)
    # The ranks divide the machine's cores.
    cores = re.findall(r"tfdist: worker:\d of .*; oneDNN [\w ]+, (cores? \S+) of", ended.output)
    assert len(set(cores)) == min(2, os.cpu_count() or 1), ended.output


def test_servers_exit_after_a_chief_that_fails(tmp_path: Path) -> None:
    with hold_ports(3) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=1)
        arguments = [*directories(tmp_path), "--fail_in_epoch=1"]
        ended = run_by_hand(tmp_path / "logs", by_flags(cluster, arguments), deadline=150)
    assert ended["chief:0"].code == 1
    assert "as requested" in ended["chief:0"].output
    for name in ("worker:0", "ps:0"):
        assert ended[name].code == 0
        assert ended[name].time - ended["chief:0"].time < 20, f"{name} exited late"
