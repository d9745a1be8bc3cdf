"""Under Keras 3 synchronous strategies compute what one process computes, and what Keras 2 does."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.keras3_cases import CASES, EXAMPLES
from tests.support.processes import run_by_hand

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(600)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "keras3_program.py")

#: Where the replicas' batches are equal parts of one process's, and there are no statistics.
AS_ONE_PROCESS = [
    name
    for name, case in CASES.items()
    if not (case.batch_norm or case.overflows) and case.examples == EXAMPLES
]
#: Where only Keras 2 under the same strategy does the same: statistics, and unlike batches.
AS_KERAS_2 = ["batch_norm", "batch_norm_adam_clipvalue", "uneven"]
#: What strategies differ in; the rest is Keras's own, and is seen under one of them.
FEW = ["momentum", "adam", "adam_global_clipnorm", "scalar_loss"]
SCALED = ["loss_scale", "loss_scale_overflows"]
#: Where the number of replicas counts most: what becomes of the sum of their gradients.
SUMMED = ["adam_global_clipnorm", "loss_scale_overflows"]
EMPTY = "uneven_batch_norm"

# Flags, and the cases that are trained one after the other.
JOBS = {
    "one_device": ([], [*AS_ONE_PROCESS, "loss_scale_overflows"]),
    "multi_worker_mirrored": (
        ["--workers=2"],
        [*AS_ONE_PROCESS, "loss_scale_overflows", *AS_KERAS_2, EMPTY],
    ),
    "multi_worker_mirrored of 3": (["--workers=3"], [*SUMMED, *AS_KERAS_2]),
    "multi_worker_mirrored of 2 with 2 replicas each": (
        ["--workers=2", "--replicas=2"],
        [*SUMMED, "scalar_loss", "named_inputs", *AS_KERAS_2, EMPTY],
    ),
    "mirrored": (
        ["--num_cpu_devices=2"],
        [*FEW, "arrays", "class_weight", *SCALED, *AS_KERAS_2, EMPTY],
    ),
    # It refuses to scale the loss.
    "central_storage": (
        ["--num_cpu_devices=2"],
        [*(name for name in AS_ONE_PROCESS if name not in SCALED), *AS_KERAS_2],
    ),
    "horovod": (
        ["--workers=2"],
        [
            *(name for name in AS_ONE_PROCESS if not CASES[name].arrays),
            *("loss_scale_overflows", *AS_KERAS_2),
        ],
    ),
    "horovod of 3": (["--workers=3"], [*FEW, *AS_KERAS_2]),
}


def jobs_with(*cases: str) -> list[Any]:
    """The jobs of several replicas that train all of these.

    The tests of one are for one process, because they share it.
    """
    return [
        pytest.param(job, marks=pytest.mark.xdist_group(f"weights of {job}"))
        for job, (_, trained) in JOBS.items()
        if job != "one_device" and {*cases} <= {*trained}
    ]


TOLERANCE = 1e-6

Found = list[dict[str, np.ndarray]]
Train = Callable[..., Found]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Runs a job, once; gives what each of its tasks found."""

    @functools.cache
    def run(job: str, keras_2: bool = False) -> Found:
        path = tmp_path_factory.mktemp("job")
        flags, cases = JOBS[job]
        if keras_2:
            cases = [case for case in cases if case in (*AS_KERAS_2, EMPTY)]
        launcher_flags = [flag for flag in flags if flag.startswith("--workers")]
        command = [
            *(sys.executable, "-m", "tfdist", "run", f"--strategy={job.split()[0]}"),
            *(*launcher_flags, PROGRAM, f"--cases={','.join(cases)}", f"--result_dir={path}"),
            *(flag for flag in flags if flag not in launcher_flags),
        ]
        environment = {"TF_USE_LEGACY_KERAS": "1"} if keras_2 else {}
        # A copy of this process would have the Keras that it has.
        ended = run_by_hand(
            path, {"tfdist": (command, environment)}, deadline=400, copies=not keras_2
        )["tfdist"]
        assert ended.code == 0, ended.output
        return [dict(np.load(file)) for file in sorted(path.glob("*.npz"))]

    return run


def check_alike(tasks: Found, keys: list[str]) -> None:
    for task in tasks[1:]:
        for key in keys:
            np.testing.assert_array_equal(task[key], tasks[0][key], err_msg=key)


@pytest.mark.parametrize("job", jobs_with("adam_global_clipnorm"))
def test_weights_are_those_of_one_process(train: Train, job: str) -> None:
    (alone,) = train("one_device")
    tasks = train(job)
    cases = [case for case in JOBS[job][1] if case in AS_ONE_PROCESS]

    # Moving statistics would be among the weights; predictions of Horovod's ranks are their own.
    check_alike(tasks, [f"{case}/weights" for case in cases])
    for case in cases:
        assert alone[f"{case}/steps"] == tasks[0][f"{case}/steps"] == 4
        assert alone[f"{case}/loss"][-1] < alone[f"{case}/loss"][0]
        keys = ["weights", "losses", "loss", "accuracy"]
        if job.startswith("horovod"):
            keys.remove("losses")  # Those of a step are of the rank's own examples.
        if CASES[case].evaluates:
            keys += ["val_loss", "evaluated", "predicted"]
        for key in keys:
            name = f"{case}/{key}"
            np.testing.assert_allclose(tasks[0][name], alone[name], atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("job", jobs_with("batch_norm"))
def test_statistics_are_alike_everywhere_and_those_that_are_validated(
    train: Train, job: str
) -> None:
    tasks = train(job)
    check_alike(tasks, ["batch_norm/weights"])
    np.testing.assert_allclose(
        tasks[0]["batch_norm/val_loss"][-1], tasks[0]["batch_norm/whole_loss"], atol=TOLERANCE
    )


@pytest.mark.parametrize("job", jobs_with(*AS_KERAS_2))
def test_weights_are_those_of_keras_2(train: Train, job: str) -> None:
    tasks = train(job)
    keras_2 = train(job, keras_2=True)

    check_alike(tasks, [f"{case}/weights" for case in AS_KERAS_2])
    for case in AS_KERAS_2:
        for key in ("weights", "loss", "accuracy"):
            name = f"{case}/{key}"
            np.testing.assert_allclose(
                tasks[0][name], keras_2[0][name], atol=TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize("job", jobs_with(EMPTY))
def test_a_replica_without_examples_leaves_the_statistics_alone(train: Train, job: str) -> None:
    """The last step of an epoch has one example."""
    tasks = train(job)
    keras_2 = train(job, keras_2=True)

    check_alike(tasks, [f"{EMPTY}/weights"])
    assert np.isfinite(tasks[0][f"{EMPTY}/weights"]).all()
    np.testing.assert_allclose(
        tasks[0][f"{EMPTY}/trained"], keras_2[0][f"{EMPTY}/trained"], atol=TOLERANCE
    )


@pytest.mark.parametrize("job", jobs_with("loss_scale_overflows"))
def test_no_replica_applies_gradients_that_overflow_in_one(train: Train, job: str) -> None:
    """Those of the first example do, once in each epoch."""
    (alone,) = train("one_device")
    tasks = train(job)

    check_alike(tasks, ["loss_scale_overflows/weights"])
    assert alone["loss_scale_overflows/steps"] == tasks[0]["loss_scale_overflows/steps"] == 2
    np.testing.assert_allclose(
        tasks[0]["loss_scale_overflows/weights"],
        alone["loss_scale_overflows/weights"],
        atol=TOLERANCE,
    )
