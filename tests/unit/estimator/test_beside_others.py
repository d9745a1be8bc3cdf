"""Estimators and sessions beside other jobs: each output directory has one writer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist.estimator
from tests.process.estimator.test_training import (
    eval_spec,
    evaluator_job,
    input_fn,
    make_estimator,
    make_job,
    train_input,
)
from tests.process.storage.test_lock import held_by_another, impatient  # noqa: F401
from tests.unit.estimator.test_run_config import job_of
from tfdist.errors import OutputError, UsageError
from tfdist.estimator.evaluation import Evaluation
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.15")


def train(path: Path) -> None:
    tfdist.estimator.train(make_estimator(make_job(), path), train_input, max_steps=8)


def from_keras(path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.Input([1], name="x"), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    config = tfdist.estimator.RunConfig(make_job(), path)
    tf.keras.estimator.model_to_estimator(model, config=config)


def export(path: Path) -> None:
    def serving_input() -> tf.estimator.export.ServingInputReceiver:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    tfdist.estimator.export(make_estimator(make_job(), path), serving_input)


def open_session(path: Path) -> None:
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        with make_job().monitored_session(str(path)):  # As in scripts for TF1.
            pass


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("write", [train, from_keras, export, open_session])
def test_a_second_writer_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "output"
    with held_by_another(path / "lock.json") as holder:
        with pytest.raises(OutputError, match=f"in use by another job .process {holder.pid} on"):
            write(path)
        assert os.listdir(path) == ["lock.json"]


def test_another_process_may_evaluate_during_the_training(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "lock.json").unlink()

    with held_by_another(tmp_path / "lock.json"):
        metrics = tfdist.estimator.evaluate(make_estimator(make_job(), tmp_path), input_fn)

    assert metrics is not None and metrics["global_step"] == 8


@pytest.mark.usefixtures("impatient")
def test_a_second_evaluator_is_refused(tmp_path: Path) -> None:
    estimator = make_estimator(evaluator_job(), tmp_path)
    output = OutputDirectory(tmp_path)
    with (
        held_by_another(output.lock),
        held_by_another(output.eval_lock) as evaluator,
        pytest.raises(OutputError, match=f"process {evaluator.pid} "),
    ):
        Evaluation(estimator, eval_spec(), max_steps=8).follow(math.inf)


@pytest.mark.parametrize("name", ["run[12]", "run*", "run?", "run\\1"])
def test_directories_that_tensorflow_interprets_are_rejected(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    with pytest.raises(UsageError, match="RunConfig model_dir: received"):
        tfdist.estimator.RunConfig(make_job(), path)
    with pytest.raises(UsageError, match="RunConfig model_dir: received"):
        tfdist.estimator.RunConfig(job_of(model_dir=path))
    with pytest.raises(UsageError, match="checkpoint_dir: received"):
        make_job().monitored_session(checkpoint_dir=path)
    assert os.listdir(tmp_path) == []
