"""`Strategy.reduce` as called by Keras 3, and as called by a script."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tfdist.config.flags import JobFlags
from tfdist.job import Job

pytestmark = pytest.mark.stacks("2.21")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    """One task that pretends to be one of two; Keras runs other code with a single task."""
    job = tfdist.entry.create(JobFlags.of(strategy="multi_worker_mirrored"), {})
    monkeypatch.setattr(job.strategy.extended, "_in_multi_worker_mode", lambda: True)
    monkeypatch.setattr(job.strategy.extended, "_num_workers", 2)
    return job


def test_a_vector_metric_stays_a_vector_in_the_logs_of_a_step(job: Job) -> None:
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
    logs = {"each": tf.constant([1.0, 2.0, 3.0]), "loss": tf.constant(4.0)}
    reduced = trainer.reduce_per_replica(logs, job.strategy, "auto")
    np.testing.assert_array_equal(reduced["each"], [1.0, 2.0, 3.0])
    assert reduced["loss"] == 4.0


def test_reductions_of_a_script_use_tensorflows_implementation(job: Job) -> None:
    with pytest.raises(ValueError, match="unsupported type"):
        job.strategy.reduce("MEAN", {"loss": per_replica(4.0)}, axis=None)
    mean = job.strategy.reduce("MEAN", per_replica([1.0, 2.0, 3.0]), axis=0)
    assert mean == 2.0


def per_replica(value: object) -> tf.distribute.DistributedValues:
    values = importlib.import_module("tensorflow.python.distribute.values")
    return values.PerReplica([tf.constant(value)])
