"""Keras 3 trains with parameter servers like Keras 2, and rejects what it does not support."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import (
    PROGRAM,
    OnceSaved,
    Processes,
    launch,
    results,
    run_by_hand,
)
from tfdist.errors import EXIT_PREEMPTED
from tfdist.storage.output_directory import OutputDirectory

# All in one pytest process, because most tests share a job.
pytestmark = [
    pytest.mark.stacks("2.21"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("keras3 with parameter servers"),
]

CASES = str(Path(__file__).parents[1] / "support" / "keras3_parameter_server_program.py")
EXAMPLES = 90  # as in the program
JOB = ["--strategy=parameter_server", "--ps=2", "--workers=3"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of `keras3_parameter_server_program.py` with three workers."""
    path = tmp_path_factory.mktemp("cases")
    ended = launch(path, *JOB, CASES, f"--result={path / 'result.json'}", deadline=200)
    assert ended.code == 0, ended.output
    result: dict[str, Any] = json.loads((path / "result.json").read_text())
    return result


def test_metrics_equal_those_of_one_process(found: dict[str, Any]) -> None:
    found = found["exact_metrics"]
    for name, expected in found["expected"].items():
        assert len(found["history"][name]) == 3
        for logs in found["history"][name], found["history"][f"val_{name}"]:
            np.testing.assert_allclose(np.ravel(logs), [np.ravel(expected)[0]] * 3, rtol=1e-5)
        np.testing.assert_allclose(found["evaluated"][name], expected, rtol=1e-5)
    assert found["history"]["count"] == found["history"]["val_count"] == [EXAMPLES] * 3
    assert found["evaluated"]["count"] == EXAMPLES
    assert found["updates"] == 3 * EXAMPLES


def test_batch_callbacks_see_the_metrics(found: dict[str, Any]) -> None:
    found = found["exact_metrics"]
    assert found["names"] == [sorted(name for name in found["evaluated"])]


def test_predict_runs_in_the_chief(found: dict[str, Any]) -> None:
    found = found["exact_metrics"]
    np.testing.assert_allclose(found["predicted"], found["features"], rtol=1e-6)


def test_fit_and_validation_run_the_requested_number_of_steps(found: dict[str, Any]) -> None:
    # It is not a multiple of steps_per_execution.
    found = found["step_limits"]
    assert found["updates"][0] == 3 * 7
    assert found["history"]["count"] == [7] * 3
    assert found["history"]["val_count"] == [5] * 3


def test_a_callback_can_stop_the_training_in_mid_epoch(found: dict[str, Any]) -> None:
    before, after = found["step_limits"]["updates"]
    assert after - before == EXAMPLES + 3


def test_a_custom_train_step_may_return_other_results(found: dict[str, Any]) -> None:
    history = found["custom_steps"]["history"]
    assert history.keys() == {"largest", "loss"}
    # Keras reports the result of the newest step; a step without data has no result.
    assert all(0 < largest < 1 for largest in history["largest"])


def test_the_end_of_the_data_logs_no_warning(found: dict[str, Any]) -> None:
    assert not [text for text in found["warnings"] if "ran out of data" in text]


@pytest.mark.parametrize(
    ("field", "received"),
    [
        ("jit_compile", "True"),
        ("run_eagerly", "True"),
        ("gradient_accumulation_steps", "2"),
        ("data of fit and evaluate", "'ndarray'"),
    ],
)
def test_unsupported_options_are_rejected(found: dict[str, Any], field: str, received: str) -> None:
    error = found["refusals"][field.partition(" ")[0]]
    assert error.startswith(f"UsageError: {field}: received {received}; accepted: ")
    assert "\n" not in error


def test_predict_on_a_sharded_dataset_is_rejected(found: dict[str, Any]) -> None:
    assert found["refusals"]["predict"].startswith("UsageError: data of predict: received ")


def test_a_job_preempted_in_mid_epoch_resumes_with_the_remaining_examples(tmp_path: Path) -> None:
    # A kernel in two parts of 256 bytes on two ps; then in four parts of 128 bytes on one ps.
    flags = [
        "--units=32",
        "--shuffle",
        "--examples=301",
        "--batch_size=2",
        "--save_steps=5",
        "--validate",
    ]
    command = [PROGRAM, *flags, f"--output_dir={tmp_path / 'output'}"]

    def preempt(processes: Processes) -> None:
        os.kill(processes["tfdist"].pid, signal.SIGTERM)

    run = [
        sys.executable,
        "-m",
        "tfdist",
        "run",
        *JOB,
        *command,
        "--partition_bytes=256",
        f"--result_dir={tmp_path / '1/result'}",
    ]
    watch = OnceSaved(tmp_path, 4, preempt)
    first = run_by_hand(tmp_path, {"tfdist": (run, {})}, deadline=90, watch=watch)["tfdist"]
    assert first.code == EXIT_PREEMPTED, first.output
    match = re.search(r"saved after step (\d+) of epoch 1", first.output)
    assert match, first.output

    second = launch(
        tmp_path,
        "--strategy=parameter_server",
        "--ps=1",
        "--workers=3",
        *command,
        f"--result_dir={tmp_path / '2/result'}",
        "--epochs=3",
        "--partition_bytes=128",
        deadline=90,
    )
    assert second.code == 0, second.output
    assert f"resuming after step {match[1]} of epoch 1 of 3" in second.output
    # The progress bar shows the steps of each epoch, also of one that was resumed.
    assert second.output.count(" 151/151 - ") == 3

    (before,) = results(tmp_path / "1").values()
    (after,) = results(tmp_path / "2").values()
    assert before["counts"].shape == (1, 301)
    assert after["counts"].shape == (3, 301)
    assert 0 < before["counts"].sum() < 301
    np.testing.assert_array_equal(before["counts"][0] + after["counts"][0], 1)
    np.testing.assert_array_equal(after["counts"][1:], 1)
    np.testing.assert_array_equal(after["val_seen"], 11)
    # The workers have 101, 100 and 100 examples.
    assert after["steps"] == 3 * (51 + 50 + 50)

    saved = OutputDirectory(str(tmp_path / "output")).saved_model / "model.keras"
    model = tf.keras.models.load_model(saved, compile=False)
    assert [tuple(weight.shape) for weight in model.get_weights()[:2]] == [(4, 32), (32,)]
    weights = np.concatenate([weight.flatten() for weight in model.get_weights()])
    np.testing.assert_array_equal(weights, after["weights"])


def assignments(function: Any) -> list[str]:
    """The types of the operations in `function` that write to variables."""
    operations = tf.function(function).get_concrete_function().graph.get_operations()
    return [operation.type for operation in operations if operation.type.startswith("Assign")]


def test_only_additions_to_the_same_variable_become_assign_add() -> None:
    from tfdist.upstream.keras3_assign_add import add_in_one_operation

    scalar, matrix = tf.keras.Variable(0.0), tf.keras.Variable(tf.zeros([3, 3]))
    other, count = tf.keras.Variable(1.0), tf.keras.Variable(0, dtype="int64")
    add_in_one_operation([scalar, matrix, other, count])
    add, assign = ["AssignAddVariableOp"], ["AssignVariableOp"]
    assert assignments(lambda: scalar.assign_add(1.0)) == add
    assert assignments(lambda: scalar.assign(2.0 + scalar)) == add
    assert assignments(lambda: matrix.assign(matrix + 1.0)) == add
    assert assignments(lambda: count.assign_add(1)) == add
    assert assignments(lambda: scalar.assign(other + 1.0)) == assign
    assert assignments(lambda: scalar.assign(tf.maximum(scalar, 1.0))) == assign
    assert assignments(lambda: scalar.assign(0.5 * scalar + 1.0)) == assign
    assert assignments(lambda: scalar.assign(0.0)) == assign
    scalar.assign_add(3.0)
    assert scalar.numpy() == 3.0


def test_concurrent_threads_lose_no_addition() -> None:
    from tfdist.upstream.keras3_assign_add import add_in_one_operation

    total, matrix = tf.keras.Variable(0.0), tf.keras.Variable(tf.zeros([2, 2]))
    add_in_one_operation([total, matrix])

    @tf.function
    def add() -> None:
        total.assign_add(1.0)
        matrix.assign(matrix + 2.0)

    def add_often() -> None:
        for _ in range(200):
            add()

    threads = [threading.Thread(target=add_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.numpy() == 4 * 200
    np.testing.assert_array_equal(matrix.numpy(), 2 * 4 * 200)
