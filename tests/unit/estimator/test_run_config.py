"""`tfdist.estimator.RunConfig`: its model directory and its strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist.entry
import tfdist.estimator
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.estimator.estimator_job import EstimatorJob

pytestmark = pytest.mark.stacks("2.15")


def job_of() -> EstimatorJob:
    """The job of one worker."""
    config = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    return tfdist.entry.create_of(EstimatorJob, JobFlags(), {"TF_CONFIG": json.dumps(config)})


def test_a_missing_directory_is_rejected() -> None:
    with pytest.raises(UsageError, match="RunConfig model_dir: received None"):
        tfdist.estimator.RunConfig(job_of())


@pytest.mark.parametrize("name", ["train_distribute", "experimental_distribute"])
def test_the_strategy_of_an_old_script_is_rejected(tmp_path: Path, name: str) -> None:
    options = {name: tf.distribute.get_strategy()}
    with pytest.raises(UsageError, match="--strategy, which is now one_device") as error:
        tfdist.estimator.RunConfig(job_of(), tmp_path, **options)
    assert error.value.field == f"RunConfig {name}"


def test_a_strategy_of_none_is_accepted(tmp_path: Path) -> None:
    config = tfdist.estimator.RunConfig(job_of(), tmp_path, train_distribute=None)
    assert config.train_distribute is None
