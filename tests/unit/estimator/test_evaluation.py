"""The evaluator of an Estimator job: what it waits for, what it skips, and when it exits."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist.estimator
from tests.process.estimator.test_training import (
    eval_spec,
    evaluated_steps,
    evaluator_job,
    input_fn,
    make_estimator,
    make_job,
    train_input,
)
from tfdist.cluster.config import ClusterFlags
from tfdist.errors import UsageError
from tfdist.estimator import input_functions
from tfdist.estimator.evaluation import Evaluation, global_step

pytestmark = pytest.mark.stacks("2.15")


def test_an_evaluator_evaluates_until_the_last_checkpoint(tmp_path: Path) -> None:
    trained = make_estimator(make_job(), tmp_path)
    estimator = make_estimator(evaluator_job(), tmp_path)
    slept: list[float] = []
    steps = iter([4, 8])
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        if len(slept) in (2, 6):
            assert not (tmp_path / "eval_metrics.jsonl").exists() or len(slept) == 6
            trained.train(input_functions.unsharded(train_input), max_steps=next(steps))
        if len(slept) == 4:
            now = 3600.0

    # The first evaluation waits for an hour, and so does the second, but the last one does not.
    spec = eval_spec(throttle_secs=3600, start_delay_secs=3600)
    evaluation = Evaluation(estimator, spec, max_steps=8, clock=lambda: now, sleep=sleep)
    evaluation.follow(math.inf)

    assert slept == [1.0] * 6
    assert evaluated_steps(tmp_path) == [4, 8]
    assert evaluation.metrics is not None
    assert evaluation.metrics["global_step"] == 8


def test_an_evaluator_waits_for_the_replacement_of_a_damaged_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = make_estimator(make_job(), tmp_path)
    for steps in (4, 8):
        tfdist.estimator.train(trained, train_input, max_steps=steps)
    os.truncate(tmp_path / "model.ckpt-8.data-00000-of-00001", 3)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            assert evaluated_steps(tmp_path) == [4]
            tfdist.estimator.train(trained, train_input, max_steps=8)

    estimator = make_estimator(evaluator_job(), tmp_path)
    Evaluation(estimator, eval_spec(), max_steps=8, sleep=sleep).follow(math.inf)

    assert len(slept) == 3
    assert evaluated_steps(tmp_path) == [4, 8]
    assert [line for line in caplog.messages if "is skipped" in line] == [
        f"{tmp_path / 'model.ckpt-8'} cannot be read (Read less bytes than requested) and is "
        "skipped"
    ]


def test_an_evaluator_continues_if_training_removes_its_checkpoint(tmp_path: Path) -> None:
    trained = make_estimator(make_job(), tmp_path, keep_checkpoint_max=1)
    tfdist.estimator.train(trained, train_input, max_steps=4)
    slept: list[float] = []
    is_first = True

    class ContinueTraining(tf.estimator.SessionRunHook):
        """Continues the training after the evaluator has selected a checkpoint."""

        def begin(self) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                tfdist.estimator.train(trained, train_input, max_steps=8)

    estimator = make_estimator(evaluator_job(), tmp_path)
    spec = eval_spec(hooks=[ContinueTraining()], throttle_secs=3600)
    Evaluation(estimator, spec, max_steps=8, sleep=slept.append).follow(math.inf)

    assert not (tmp_path / "model.ckpt-4.index").exists()
    assert evaluated_steps(tmp_path) == [8]
    assert slept == [1.0], "it should sleep before it tries again"


def test_an_evaluator_fails_if_an_input_file_is_missing(tmp_path: Path) -> None:
    """TensorFlow raises the same error for a missing checkpoint."""
    tfdist.estimator.train(make_estimator(make_job(), tmp_path), train_input, max_steps=4)
    missing = str(tmp_path / "missing.txt")

    def eval_input() -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(missing).batch(3)
        return lines.map(lambda x: ({"x": tf.strings.to_number(x)}, tf.strings.to_number(x)))

    def sleep(_: float) -> None:
        pytest.fail("there is nothing to wait for")

    estimator = make_estimator(evaluator_job(), tmp_path)
    spec = tf.estimator.EvalSpec(eval_input, steps=None, start_delay_secs=0)
    with pytest.raises(tf.errors.NotFoundError, match=r"missing\.txt"):
        Evaluation(estimator, spec, max_steps=4, sleep=sleep).follow(math.inf)


def test_an_evaluator_exits_after_the_input_of_the_training_has_ended(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('{"global_step": 9, "run": "an earlier one"}')
    trained = make_estimator(make_job(), tmp_path)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            tfdist.estimator.train(trained, input_fn)

    estimator = make_estimator(evaluator_job(), tmp_path)
    evaluation = Evaluation(estimator, eval_spec(), max_steps=None, sleep=sleep)
    evaluation.follow(math.inf)

    assert len(slept) == 3
    assert global_step(estimator) == 4
    assert evaluated_steps(tmp_path) == [4]


def test_an_evaluator_that_starts_after_the_training_exits(tmp_path: Path) -> None:
    tfdist.estimator.train(make_estimator(make_job(), tmp_path), input_fn)
    evaluation = Evaluation(make_estimator(evaluator_job(), tmp_path), eval_spec(), max_steps=None)
    evaluation.follow(math.inf)
    assert evaluated_steps(tmp_path) == [4]


def test_an_evaluator_waits_for_the_training_and_exports_nothing(tmp_path: Path) -> None:
    tfdist.estimator.train(make_estimator(make_job(), tmp_path), train_input, max_steps=3)
    estimator = make_estimator(evaluator_job(), tmp_path)
    tfdist.estimator.train(estimator, train_input, max_steps=3)
    metrics = tfdist.estimator.evaluate(estimator, input_fn)
    assert metrics is not None
    assert metrics["global_step"] == 3
    assert tfdist.estimator.export(estimator, lambda: None) is None
    assert not (tmp_path / "saved_model").exists()


@pytest.mark.parametrize(
    ("cluster", "strategy"),
    [
        ({"master": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}, "auto"),
        ({"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "auto"),
        ({"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "horovod"),
    ],
)
def test_an_evaluator_is_rejected_if_the_chief_evaluates(
    cluster: dict[str, list[str]], strategy: str
) -> None:
    config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    with pytest.raises(UsageError) as error:
        make_job({"TF_CONFIG": json.dumps(config)}, strategy=strategy)
    assert error.value.field == "task.type"


def test_an_evaluator_needs_no_cluster_description(tmp_path: Path) -> None:
    job = make_job(cluster=ClusterFlags(job_name="evaluator", task_index="0"))
    assert job.evaluates


def test_an_evaluator_for_session_code_is_rejected() -> None:
    job = evaluator_job()
    for use in (job.device_setter, job.monitored_session):
        with pytest.raises(UsageError, match="Leave the evaluator out") as error:
            use()
        assert error.value.received == "evaluator, for session code"
