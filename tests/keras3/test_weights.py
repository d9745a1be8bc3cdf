"""With Keras 3, synchronous strategies give the same weights as one process and as Keras 2."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.keras3_cases import CASES, EXAMPLES
from tests.support.processes import run_by_hand

# All in one pytest process, because all tests share the job of one process.
pytestmark = [
    pytest.mark.stacks("2.21", horovod=("newest",)),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("keras3 weights"),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "keras3_program.py")

#: Cases that must equal one process: equal batches for all replicas, and no moving statistics.
AS_ONE_PROCESS = [
    name
    for name, case in CASES.items()
    if not (case.batch_norm or case.overflows) and case.examples == EXAMPLES
]
#: Cases that only equal Keras 2 under the same strategy: statistics, or batches of unequal sizes.
AS_KERAS_2 = ["batch_norm", "batch_norm_adam_clipvalue", "uneven"]
SCALED = ["loss_scale", "loss_scale_overflows"]
#: Cases that depend most on the number of replicas: they use the sum of all gradients.
SUMMED = ["adam_global_clipnorm", "loss_scale_overflows"]
EMPTY = "uneven_batch_norm"

# The flags of each job, and the cases that it trains one after the other.
JOBS = {
    "one_device": ([], [*AS_ONE_PROCESS, "loss_scale_overflows"]),
    "multi_worker_mirrored": (
        ["--workers=2"],
        [*AS_ONE_PROCESS, "loss_scale_overflows", *AS_KERAS_2, EMPTY],
    ),
    "multi_worker_mirrored of 2 with 2 replicas each": (
        ["--workers=2", "--replicas=2"],
        [*SUMMED, "named_inputs"],
    ),
    # mirrored differs from multi_worker_mirrored only in TensorFlow; central_storage does not
    # support loss scaling.
    "central_storage": (
        ["--num_cpu_devices=2"],
        ["adam_global_clipnorm", "embeds", "batch_norm"],
    ),
    "horovod": (
        ["--workers=2"],
        ["adam_global_clipnorm", "embeds_clipnorm", *SCALED, *AS_KERAS_2],
    ),
}


def jobs_with(*cases: str) -> list[str]:
    """The jobs with several replicas that train all of these cases."""
    return [
        job for job, (_, trained) in JOBS.items() if job != "one_device" and {*cases} <= {*trained}
    ]


TOLERANCE = 1e-6

Results = list[dict[str, np.ndarray]]
Train = Callable[..., Results]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Runs a job, once, and returns the results of its tasks."""

    @functools.cache
    def run(job: str, keras_2: bool = False) -> Results:
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
        # A copy of this process would use the Keras of this process.
        ended = run_by_hand(
            path, {"tfdist": (command, environment)}, deadline=400, copies=not keras_2
        )["tfdist"]
        assert ended.code == 0, ended.output
        return [dict(np.load(file)) for file in sorted(path.glob("*.npz"))]

    return run


def check_equal(tasks: Results, keys: list[str]) -> None:
    for task in tasks[1:]:
        for key in keys:
            np.testing.assert_array_equal(task[key], tasks[0][key], err_msg=key)


@pytest.mark.parametrize("job", jobs_with("adam_global_clipnorm"))
def test_weights_equal_those_of_one_process(train: Train, job: str) -> None:
    (alone,) = train("one_device")
    tasks = train(job)
    cases = [case for case in JOBS[job][1] if case in AS_ONE_PROCESS]

    # The weights would include moving statistics; each Horovod rank predicts different examples.
    check_equal(tasks, [f"{case}/weights" for case in cases])
    for case in cases:
        assert alone[f"{case}/steps"] == tasks[0][f"{case}/steps"] == 4
        assert alone[f"{case}/loss"][-1] < alone[f"{case}/loss"][0]
        keys = ["weights", "losses", "loss", "accuracy"]
        if job.startswith("horovod"):
            keys.remove("losses")  # The losses of a step are those of the rank's own examples.
        if CASES[case].evaluates:
            keys += ["val_loss", "evaluated", "predicted"]
        for key in keys:
            name = f"{case}/{key}"
            np.testing.assert_allclose(tasks[0][name], alone[name], atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("job", jobs_with("batch_norm"))
def test_statistics_are_equal_everywhere_and_used_in_validation(train: Train, job: str) -> None:
    tasks = train(job)
    check_equal(tasks, ["batch_norm/weights"])
    np.testing.assert_allclose(
        tasks[0]["batch_norm/val_loss"][-1], tasks[0]["batch_norm/full_batch_loss"], atol=TOLERANCE
    )


@pytest.mark.parametrize("job", jobs_with(*AS_KERAS_2))
def test_weights_equal_those_of_keras_2(train: Train, job: str) -> None:
    tasks = train(job)
    keras_2 = train(job, keras_2=True)

    check_equal(tasks, [f"{case}/weights" for case in AS_KERAS_2])
    for case in AS_KERAS_2:
        for key in ("weights", "loss", "accuracy"):
            name = f"{case}/{key}"
            np.testing.assert_allclose(
                tasks[0][name], keras_2[0][name], atol=TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize("job", jobs_with(EMPTY))
def test_a_replica_without_examples_does_not_change_the_statistics(train: Train, job: str) -> None:
    """The last step of an epoch has one example."""
    tasks = train(job)
    keras_2 = train(job, keras_2=True)

    check_equal(tasks, [f"{EMPTY}/weights"])
    assert np.isfinite(tasks[0][f"{EMPTY}/weights"]).all()
    np.testing.assert_allclose(
        tasks[0][f"{EMPTY}/trained"], keras_2[0][f"{EMPTY}/trained"], atol=TOLERANCE
    )


@pytest.mark.parametrize("job", jobs_with("loss_scale_overflows"))
def test_no_replica_applies_gradients_that_overflow_in_one_replica(train: Train, job: str) -> None:
    """The gradients of the first example overflow, once in each epoch."""
    (alone,) = train("one_device")
    tasks = train(job)

    check_equal(tasks, ["loss_scale_overflows/weights"])
    assert alone["loss_scale_overflows/steps"] == tasks[0]["loss_scale_overflows/steps"] == 2
    np.testing.assert_allclose(
        tasks[0]["loss_scale_overflows/weights"],
        alone["loss_scale_overflows/weights"],
        atol=TOLERANCE,
    )
