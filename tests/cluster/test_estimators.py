"""Estimators under every strategy: what is computed, what is read, and how the tasks end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.cluster.processes import (
    Ended,
    Processes,
    Tasks,
    cluster_of,
    directories,
    launch,
    results,
    run_by_hand,
)
from tfdist.cluster import Cluster, Task
from tfdist.launch.local import hold_ports

pytestmark = pytest.mark.timeout(150)

PROGRAM = str(Path(__file__).with_name("estimator_program.py"))
EVALUATOR = Task("evaluator", 0)
EXAMPLES = 48

# The options of `tfdist run` and the replicas whose gradients meet in an update.
SYNCHRONOUS = {
    "mirrored": ([], ["--num_cpu_devices=2"], 2),
    "multi_worker_mirrored": (["--workers=2"], [], 2),
    "horovod": (["--workers=2"], [], 2),
    "parameter_server": (["--ps=2", "--workers=3"], ["--sync"], 3),
}


def run(path: Path, strategy: str, options: list[str], *flags: str, code: int = 0) -> Ended:
    ended = launch(
        path, f"--strategy={strategy}", *options, PROGRAM, *directories(path), *flags, deadline=120
    )
    assert ended.code == code, ended.output
    return ended


def by_hand(
    cluster: Cluster, arguments: list[str], *more: Task, flags: bool = False, master: bool = False
) -> Tasks:
    """Each task of the cluster, told who it is by flags or by TF_CONFIG in either dialect."""
    tasks: Tasks = {}
    for task in (*cluster.tasks(), *more):
        config = cluster.tf_config(task)
        if master:
            config = config.replace('"chief"', '"master"')
            config = json.dumps({**json.loads(config), "environment": "cloud"})
        told = cluster.flags(task) if flags else []
        environment = {} if flags else {"TF_CONFIG": config}
        tasks[str(task)] = ([sys.executable, PROGRAM, *told, *arguments], environment)
    return tasks


def check_ends(ended: Mapping[str, Ended], leader: str) -> None:
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
        assert task.time - ended[leader].time < 15, f"{name} lingered"


def variables(path: Path) -> dict[str, np.ndarray]:
    """The variables of the newest checkpoint, by name; it must be of the job's last step."""
    newest = tf.train.latest_checkpoint(str(path / "output"))
    assert newest, "there should be a checkpoint"
    names = [name for name, _ in tf.train.list_variables(newest)]
    read = {name: tf.train.load_variable(newest, name) for name in names}
    return {name: np.asarray(value) for name, value in read.items() if not isinstance(value, bytes)}


def weights(path: Path) -> np.ndarray:
    """What was trained, and the momenta."""
    named = variables(path)
    counters = ("counts", "global_step")
    return np.concatenate(
        [named[name].ravel() for name in sorted(named) if not name.startswith(counters)]
    )


def evaluations(path: Path) -> list[dict[str, float]]:
    lines = (path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_written(path: Path) -> None:
    """Nothing but what the leader and the evaluation write is in the output directory."""
    known = {"checkpoint", "done.json", "eval", "eval_metrics.jsonl", "graph.pbtxt", "keras"}
    for name in os.listdir(path / "output"):
        assert name in known or name.startswith(("model.ckpt-", "events.out.tfevents")), name


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], Path]:
    """A job of one process for each global batch and kind of model."""
    paths = {}
    for replicas, keras in ((2, False), (3, False), (2, True), (3, True)):
        path = tmp_path_factory.mktemp("one")
        run(path, "one_device", [], f"--batch_size={4 * replicas}", f"--keras={keras}")
        paths[replicas, keras] = path
        assert evaluations(path)[0]["loss"] > evaluations(path)[-1]["loss"], "it should learn"
    return paths


@pytest.mark.parametrize("keras", [False, True])
@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_synchronous_updates_are_those_of_one_process(
    tmp_path: Path, strategy: str, keras: bool, one_process: dict[tuple[int, bool], Path]
) -> None:
    options, flags, replicas = SYNCHRONOUS[strategy]
    run(tmp_path, strategy, options, *flags, f"--keras={keras}")

    one = one_process[replicas, keras]
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)
    assert evaluations(tmp_path)[-1]["global_step"] == 24
    check_written(tmp_path)
    if keras:
        return
    assert evaluations(tmp_path)[-1]["seen"] == 11, "each example should be evaluated once"
    epochs = 24 * 4 * replicas // EXAMPLES
    counts = variables(tmp_path)["counts"]
    if strategy == "horovod":
        counts = np.sum([task["counts"] for task in results(tmp_path).values()], axis=0)
    np.testing.assert_array_equal(counts, epochs)


@pytest.mark.parametrize("keras", [False, True])
def test_asynchronous_workers_read_a_shard_each(tmp_path: Path, keras: bool) -> None:
    run(
        tmp_path,
        "parameter_server",
        ["--ps=2", "--workers=2"],
        "--max_steps=60",
        f"--keras={keras}",
        # So that a worker that finds the chief a second late has its part, too.
        "--step_seconds=0.1",
    )

    assert evaluations(tmp_path)[-1]["global_step"] >= 60
    # One process has as much after a step.
    assert evaluations(tmp_path)[-1]["loss"] < (4.1 if keras else 4.4)
    check_written(tmp_path)
    if not keras:
        seen = [task["seen"] for task in results(tmp_path).values()]
        first_epoch = np.concatenate([examples[: EXAMPLES // 2] for examples in seen])
        np.testing.assert_array_equal(np.sort(first_epoch), np.arange(EXAMPLES))
        counts = variables(tmp_path)["counts"]
        assert 60 * 4 <= counts.sum() <= 62 * 4


@pytest.mark.parametrize("sync", [False, True])
def test_the_platforms_layout_by_tf_config_alone(tmp_path: Path, sync: bool) -> None:
    """Two hosts, each with a ps and a worker or the master, in the older dialect."""
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=2)
        arguments = [
            *directories(tmp_path),
            f"--sync={sync}",
            "--max_steps=60",
            "--step_seconds=0.02",
        ]
        ended = run_by_hand(
            tmp_path / "logs", by_hand(cluster, arguments, master=True), deadline=90
        )
    check_ends(ended, "chief:0")
    assert "final" in ended["chief:0"].output, "the master should evaluate"
    steps = [line["global_step"] for line in evaluations(tmp_path)]
    assert len(steps) > 1, "after checkpoints too"
    assert steps[-1] >= 60


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (True, ["--strategy=parameter_server"]),
        (False, ["--strategy=parameter_server", "--sync"]),
        (False, ["--strategy=multi_worker_mirrored"]),
    ],
)
def test_a_chief_with_an_evaluator(tmp_path: Path, flags: bool, arguments: list[str]) -> None:
    ps = 1 if "--strategy=parameter_server" in arguments else 0
    with hold_ports(2 + ps) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=ps)
        tasks = by_hand(cluster, [*directories(tmp_path), *arguments], EVALUATOR, flags=flags)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=90)
    check_ends(ended, "chief:0")
    assert "final" not in ended["chief:0"].output
    assert "final" in ended["evaluator:0"].output
    assert evaluations(tmp_path)[-1]["global_step"] >= 24
    assert evaluations(tmp_path)[-1]["seen"] == 11
    check_written(tmp_path)
    if "--sync" in arguments or not ps:
        np.testing.assert_array_equal(variables(tmp_path)["counts"], 4)


def test_horovod_started_by_hand(tmp_path: Path) -> None:
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        arguments = [*directories(tmp_path), "--strategy=horovod"]
        ended = run_by_hand(tmp_path / "logs", by_hand(cluster, arguments, flags=True), deadline=90)
    check_ends(ended, "worker:0")
    assert evaluations(tmp_path)[-1]["global_step"] == 24


def test_a_backup_worker_keeps_the_fast_ones_from_waiting(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "parameter_server",
        ["--ps=1", "--workers=3"],
        "--sync",
        "--replicas_to_aggregate=2",
        "--slow_worker=2",
        "--step_seconds=0.05",
        "--max_steps=80",
        "--save_steps=1000",
    )
    runs = {name: len(task["times"]) for name, task in results(tmp_path).items()}
    # The slow worker takes ten times as long, so that it comes to a tenth of the steps.
    assert runs["worker-2"] < 80 / 5, runs
    assert runs["worker-0"] == 80, "a fast worker should contribute once to an update"
    # What was contributed and is behind no update came too late.
    dropped, contributed = map(
        int, ended.output.split(" gradients were stale")[0].rsplit("\n", 1)[1].split()[2::2]
    )
    assert contributed == pytest.approx(sum(runs.values()), abs=2)
    assert dropped == pytest.approx(contributed - 2 * 80, abs=3)
    assert dropped >= runs["worker-2"] - 3 > 0, "a slow gradient is always late"


def test_a_killed_asynchronous_worker_is_replaced(tmp_path: Path) -> None:
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, workers=3, ps=1)
        tasks = by_hand(
            cluster,
            [*directories(tmp_path), "--step_seconds=0.05", "--max_steps=1200", "--save_steps=50"],
        )
        command, environment = tasks["worker:2"]
        # A shell in whose place another process comes when the first is killed.
        again = 'echo "$$"; "$@"; test $? = 137 && echo replaced && exec "$@"'
        tasks["worker:2"] = (["bash", "-c", again, "bash", *command], environment)
        killed: list[int] = []

        def watch(processes: Processes, paths: Mapping[str, Path]) -> None:
            if not killed and re.search(r"step = 1\d\d", paths["worker:0"].read_text()):
                shell = processes["worker:2"].pid
                (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
                os.kill(int(child), signal.SIGKILL)
                killed.append(int(child))

        ended = run_by_hand(tmp_path / "logs", tasks, deadline=110, watch=watch)
    assert killed, ended["worker:0"].output
    check_ends(ended, "worker:0")
    assert "replaced" in ended["worker:2"].output
    replacement = results(tmp_path)["worker-2"]["seen"]
    assert 0 < len(replacement) < 1100 * 4, "it should train on, from where the others are"
    assert set(replacement) <= set(range(2, EXAMPLES, 3)), "its own shard"


@pytest.mark.parametrize("sync", [False, True])
def test_a_worker_that_comes_late_catches_up(tmp_path: Path, sync: bool) -> None:
    aggregate = ["--sync", "--replicas_to_aggregate=1"] if sync else []
    ended = run(
        tmp_path,
        "parameter_server",
        ["--ps=1", "--workers=2"],
        *aggregate,
        "--slow_worker=1",
        "--start_seconds=6",
        "--step_seconds=0.02",
        "--max_steps=600",
        "--save_steps=1000",
    )
    late = results(tmp_path)["worker-1"]["times"]
    early = results(tmp_path)["worker-0"]["times"]
    assert early[0] < late[0] < early[-1], "it should come while the others train"
    assert late[-1] <= early[-1] + 5
    assert "step 60" in ended.output


@pytest.mark.parametrize("sync", [False, True])
def test_a_worker_that_is_ready_after_the_end_ends(tmp_path: Path, sync: bool) -> None:
    """It has seen that there is something to do, and its session begins when all is done."""
    aggregate = ["--sync", "--replicas_to_aggregate=1"] if sync else []
    flags = [*aggregate, "--slow_worker=1", "--build_seconds=8"]
    run(tmp_path, "parameter_server", ["--ps=1", "--workers=2"], *flags)
    assert evaluations(tmp_path)[-1]["global_step"] >= 24


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_rounds_of_train_and_evaluate(
    tmp_path: Path, strategy: str, one_process: dict[tuple[int, bool], Path]
) -> None:
    ended = run(tmp_path, strategy, ["--workers=2"], "--rounds")
    assert "going on from step 12" in ended.output
    assert ended.output.count("final") == 1
    one = one_process[2, False]
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)


def test_parameter_servers_train_once(tmp_path: Path) -> None:
    options = ["--ps=1", "--workers=2"]
    ended = run(tmp_path, "parameter_server", options, "--rounds", code=1)
    assert "A parameter-server job trains once" in ended.output


def test_a_complete_job_that_is_started_again_ends(tmp_path: Path) -> None:
    run(tmp_path, "parameter_server", ["--ps=1", "--workers=2"])
    with hold_ports(3) as ports:
        tasks = by_hand(cluster_of(ports, workers=2, ps=1), directories(tmp_path))
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=40)
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    assert "training is complete, at step" in ended["worker:0"].output


@pytest.mark.parametrize(
    ("strategy", "options", "flags"),
    [
        ("one_device", [], ["--batch_size=8"]),
        ("horovod", ["--workers=2"], []),
        ("parameter_server", ["--ps=1", "--workers=2"], ["--sync"]),
    ],
)
def test_a_resumed_job_goes_on_at_its_global_step(
    tmp_path: Path,
    strategy: str,
    options: list[str],
    flags: list[str],
    one_process: dict[tuple[int, bool], Path],
) -> None:
    # 12 steps are a whole number of epochs, with which the input begins anew.
    run(tmp_path, strategy, options, *flags, "--max_steps=12")
    ended = run(tmp_path, strategy, options, *flags, "--max_steps=24")
    assert "going on from step 12" in ended.output
    assert variables(tmp_path)["global_step"] == 24
    one = one_process[2, False]
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)

    if strategy != "parameter_server":
        ended = run(tmp_path, strategy, options, *flags, "--max_steps=24")
        assert "training is complete, at step 24 of 24" in ended.output
        assert ended.output.count("final") == 1, "it is evaluated all the same"


@pytest.mark.parametrize(
    ("strategy", "flags", "code", "answer"),
    [
        ("parameter_server", ["--nosharded"], 2, "input_fn: received 'a function without input_co"),
        ("multi_worker_mirrored", ["--norepeat"], 2, "input_fn: received 'a dataset of"),
        (
            "parameter_server",
            ["--sync", "--norepeat"],
            2,
            "input_fn: received 'a dataset of",
        ),
        ("parameter_server", ["--norepeat"], 2, "input_fn: received 'a dataset of"),
        (
            "horovod",
            ["--norepeat", "--noknown_size"],
            2,
            "input_fn: received 'a dataset of unknown length",
        ),
        ("parameter_server", ["--sync", "--nowrapped"], 1, "was not given to job.optimizer"),
        ("horovod", ["--nowrapped"], 1, "was not given to job.optimizer"),
        (
            "parameter_server",
            ["--sync", "--replicas_to_aggregate=3"],
            2,
            "--replicas_to_aggregate: received 3; accepted: 1 to 2",
        ),
        ("central_storage", [], 2, "--strategy: received 'central_storage for an Estimator'"),
    ],
)
def test_a_mistake_is_answered_and_not_trained_on(
    tmp_path: Path, strategy: str, flags: list[str], code: int, answer: str
) -> None:
    options = {"parameter_server": ["--ps=1", "--workers=2"], "central_storage": []}
    ended = run(tmp_path, strategy, options.get(strategy, ["--workers=2"]), *flags, code=code)
    assert answer in ended.output
    assert not list((tmp_path / "output").glob("*.index"))


def test_an_evaluator_beside_a_master_is_refused(tmp_path: Path) -> None:
    with hold_ports(3) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=1)
        tasks = by_hand(cluster, directories(tmp_path), EVALUATOR, master=True)
        evaluator = {"evaluator:0": tasks["evaluator:0"]}
        (ended,) = run_by_hand(tmp_path / "logs", evaluator, deadline=30).values()
    assert ended.code == 2
    assert "task.type: received 'evaluator" in ended.output
