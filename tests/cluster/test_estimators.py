"""Estimators under every strategy: results, input shards, resuming and rejected options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.estimator_jobs import (
    EVALUATOR,
    EXAMPLES,
    by_hand,
    check_exits,
    check_output_files,
    check_speed,
    evaluations,
    run,
    variables,
    weights,
)
from tests.support.processes import cluster_of, directories, results, run_by_hand
from tfdist.tools.launch.local import hold_ports

pytestmark = [
    pytest.mark.stacks("2.15"),
    pytest.mark.timeout(150),
    pytest.mark.xdist_group("Estimators"),
]

# The options of `tfdist run`, the flags of the program, and the number of replicas per update.
SYNCHRONOUS = {
    "mirrored": ([], ["--num_cpu_devices=2"], 2),
    "multi_worker_mirrored": (["--workers=2"], [], 2),
    "horovod": (["--workers=2"], [], 2),
    "parameter_server": (["--ps=2", "--workers=3"], ["--sync"], 3),
}


OneProcess = Callable[[int, bool], Path]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> OneProcess:
    """Runs a job with one process, once for each number of replicas and kind of model."""

    @functools.cache
    def trained(replicas: int, keras: bool) -> Path:
        path = tmp_path_factory.mktemp("one")
        run(path, "one_device", [], f"--batch_size={4 * replicas}", f"--keras={keras}")
        assert evaluations(path)[0]["loss"] > evaluations(path)[-1]["loss"], "it should learn"
        return path

    return trained


@pytest.mark.parametrize(
    ("strategy", "keras"),
    [
        *((strategy, True) for strategy in SYNCHRONOUS),
        ("horovod", False),
        ("parameter_server", False),
    ],
)
def test_synchronous_updates_equal_those_of_one_process(
    tmp_path: Path, strategy: str, keras: bool, one_process: OneProcess
) -> None:
    options, flags, replicas = SYNCHRONOUS[strategy]
    run(tmp_path, strategy, options, *flags, f"--keras={keras}")

    one = one_process(replicas, keras)
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)
    assert evaluations(tmp_path)[-1]["global_step"] == 24
    check_output_files(tmp_path)
    if keras:
        return
    assert evaluations(tmp_path)[-1]["seen"] == 11, "each example should be evaluated once"
    epochs = 24 * 4 * replicas // EXAMPLES
    counts = variables(tmp_path)["counts"]
    if strategy == "horovod":
        counts = np.sum([task["counts"] for task in results(tmp_path).values()], axis=0)
    np.testing.assert_array_equal(counts, epochs)


def test_each_asynchronous_worker_reads_its_shard(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "parameter_server",
        ["--ps=2", "--workers=2"],
        "--max_steps=60",
        "--keras=False",
        # Slow steps, so that a worker that starts a second after the chief also trains.
        "--step_seconds=0.1",
    )

    assert evaluations(tmp_path)[-1]["global_step"] >= 60
    # One process has this loss after one step.
    assert evaluations(tmp_path)[-1]["loss"] < 4.4
    check_output_files(tmp_path)
    seen = [task["seen"] for task in results(tmp_path).values()]
    first_epoch = np.concatenate([examples[: EXAMPLES // 2] for examples in seen])
    np.testing.assert_array_equal(np.sort(first_epoch), np.arange(EXAMPLES))
    counts = variables(tmp_path)["counts"]
    assert 60 * 4 <= counts.sum() <= 62 * 4
    times = np.sort(np.concatenate([task["times"] for task in results(tmp_path).values()]))
    check_speed(ended, times, batch=4)


@pytest.mark.horovod
def test_rounds_of_train_and_evaluate(tmp_path: Path, one_process: OneProcess) -> None:
    ended = run(tmp_path, "horovod", ["--workers=2"], "--rounds")
    assert "resuming from step 12" in ended.output
    assert ended.output.count("final") == 1
    one = one_process(2, False)
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)


def test_a_parameter_server_job_trains_only_once(tmp_path: Path) -> None:
    options = ["--ps=1", "--workers=2"]
    ended = run(tmp_path, "parameter_server", options, "--rounds", code=1)
    assert "A parameter-server job trains only once" in ended.output


@pytest.mark.parametrize(
    ("strategy", "options", "flags"),
    [
        ("one_device", [], ["--batch_size=8"]),
        ("mirrored", [], ["--num_cpu_devices=2"]),
        ("horovod", ["--workers=2"], []),
        ("parameter_server", ["--ps=1", "--workers=2"], ["--sync"]),
    ],
)
def test_a_resumed_job_continues_at_its_global_step(
    tmp_path: Path,
    strategy: str,
    options: list[str],
    flags: list[str],
    one_process: OneProcess,
) -> None:
    # 12 steps are complete epochs, so the restarted input continues with the same examples.
    run(tmp_path, strategy, options, *flags, "--max_steps=12")
    ended = run(tmp_path, strategy, options, *flags, "--max_steps=24")
    assert "resuming from step 12" in ended.output
    assert variables(tmp_path)["global_step"] == 24
    one = one_process(2, False)
    np.testing.assert_allclose(weights(tmp_path), weights(one), rtol=0, atol=1e-6)

    if strategy == "one_device":
        ended = run(tmp_path, strategy, options, *flags, "--max_steps=24")
        assert "training is complete, at step 24 of 24" in ended.output
        assert ended.output.count("final") == 1, "a complete training is still evaluated"


def test_a_resumed_asynchronous_job_trains_until_it_is_complete(tmp_path: Path) -> None:
    ended, steps = [], []
    with hold_ports(3) as ports:
        cluster = cluster_of(ports, workers=2, ps=1)
        for number, target in enumerate((12, 24, 24)):
            tasks = by_hand(cluster, [*directories(tmp_path), f"--max_steps={target}"])
            ended.append(run_by_hand(tmp_path / f"logs{number}", tasks, deadline=90))
            if number < 2:
                check_exits(tmp_path, ended[number])
            steps.append(int(variables(tmp_path)["global_step"]))
            # A worker that is in the middle of a step at the end of training finishes it.
            assert target <= steps[number] <= target + 2
    assert f"resuming from step {steps[0]}\n" in ended[1]["worker:0"].output
    assert [task.code for task in ended[2].values()] == [0, 0, 0]
    assert f"training is complete, at step {steps[1]} of 24" in ended[2]["worker:0"].output


@pytest.mark.parametrize(
    ("strategy", "flags", "code", "answer"),
    [
        ("parameter_server", ["--nosharded"], 2, "input_fn: received 'a function without input_co"),
        ("multi_worker_mirrored", ["--norepeat"], 2, "input_fn: received 'a dataset of"),
        ("parameter_server", ["--norepeat"], 2, "input_fn: received 'a dataset of"),
        (
            "horovod",
            ["--norepeat", "--noknown_size"],
            2,
            "input_fn: received 'a dataset of unknown length",
        ),
        ("parameter_server", ["--sync", "--nowrapped"], 2, "was not passed to job.wrap_optimizer"),
        ("horovod", ["--nowrapped"], 2, "was not passed to job.wrap_optimizer"),
        (
            "parameter_server",
            ["--sync", "--replicas_to_aggregate=3"],
            2,
            "--replicas_to_aggregate: received 3; accepted: 1 to 2",
        ),
        ("central_storage", [], 2, "--strategy: received 'central_storage for an Estimator'"),
    ],
)
def test_a_mistake_is_an_error_before_training(
    tmp_path: Path, strategy: str, flags: list[str], code: int, answer: str
) -> None:
    options = {"parameter_server": ["--ps=1", "--workers=2"], "central_storage": []}
    ended = run(tmp_path, strategy, options.get(strategy, ["--workers=2"]), *flags, code=code)
    assert answer in ended.output
    assert "Traceback" not in ended.output
    assert not list((tmp_path / "output").glob("*.index"))


def test_an_evaluator_in_a_cluster_with_a_master_is_rejected(tmp_path: Path) -> None:
    with hold_ports(3) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=1)
        tasks = by_hand(cluster, directories(tmp_path), EVALUATOR, master=True)
        evaluator = {"evaluator:0": tasks["evaluator:0"]}
        (ended,) = run_by_hand(tmp_path / "logs", evaluator, deadline=30).values()
    assert ended.code == 2
    assert "task.type: received 'evaluator" in ended.output
