"""`tfdist.estimator.RunConfig`: its model directory and its strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdist.entry
import tfdist.estimator
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.estimator.estimator_job import EstimatorJob

pytestmark = pytest.mark.stacks("2.15")


def job_of(**tf_config: Any) -> EstimatorJob:
    """The job of one worker, with additional fields in its TF_CONFIG."""
    cluster = {"worker": ["127.0.0.1:1"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}, **tf_config}
    return tfdist.entry.create_of(EstimatorJob, JobFlags(), {"TF_CONFIG": json.dumps(config)})


def test_the_directory_in_tf_config_is_the_default(tmp_path: Path) -> None:
    config = tfdist.estimator.RunConfig(job_of(model_dir=str(tmp_path)))
    assert config.model_dir == str(tmp_path)


def test_the_script_and_tf_config_may_name_the_same_directory(tmp_path: Path) -> None:
    job = job_of(model_dir=f"{tmp_path}/")
    assert tfdist.estimator.RunConfig(job, tmp_path).model_dir == str(tmp_path)


def test_two_different_directories_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        tfdist.estimator.RunConfig(job_of(model_dir="/elsewhere"), tmp_path)
    assert (error.value.field, error.value.received) == ("RunConfig model_dir", str(tmp_path))
    assert error.value.accepted == "the model_dir of TF_CONFIG, '/elsewhere'"


def test_a_missing_directory_is_rejected() -> None:
    with pytest.raises(UsageError, match="RunConfig model_dir: received None"):
        tfdist.estimator.RunConfig(job_of())


@pytest.mark.parametrize("model_dir", ["", 7, ["a"]])
def test_an_invalid_directory_in_tf_config_is_rejected(model_dir: Any) -> None:
    with pytest.raises(UsageError) as error:
        job_of(model_dir=model_dir)
    assert (error.value.field, error.value.received) == ("TF_CONFIG model_dir", model_dir)


@pytest.mark.parametrize("name", ["train_distribute", "experimental_distribute"])
def test_the_strategy_of_an_old_script_is_rejected(tmp_path: Path, name: str) -> None:
    options = {name: tf.distribute.get_strategy()}
    with pytest.raises(UsageError, match="--strategy, which is now one_device") as error:
        tfdist.estimator.RunConfig(job_of(), tmp_path, **options)
    assert error.value.field == f"RunConfig {name}"


def test_a_strategy_of_none_is_accepted(tmp_path: Path) -> None:
    config = tfdist.estimator.RunConfig(job_of(), tmp_path, train_distribute=None)
    assert config.train_distribute is None
