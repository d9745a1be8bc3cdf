"""Checks of compiled Keras 2 models, which reject options that would train incorrectly."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import TinyTraining
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.job import Job

pytestmark = pytest.mark.stacks("2.15")


def job_of(strategy: str, **flags: Any) -> Job:
    return tfdist.entry.create(JobFlags.of(strategy=strategy, **flags), {})


def compiled(model: tf.keras.Model, optimizer: Any, **options: Any) -> tf.keras.Model:
    model.compile(optimizer, "sparse_categorical_crossentropy", **options)
    return model


def test_horovod_averages_the_gradients_of_any_optimizer(tiny: TinyTraining) -> None:
    import horovod.tensorflow as hvd

    job = job_of("horovod")
    scales_loss = tf.keras.mixed_precision.LossScaleOptimizer
    for optimizer in (
        "sgd",
        tf.keras.optimizers.SGD(0.1),
        job.wrap_optimizer(tf.keras.optimizers.SGD(0.1)),
        scales_loss(tf.keras.optimizers.SGD(0.1)),
        scales_loss(job.wrap_optimizer(tf.keras.optimizers.SGD(0.1))),
    ):
        model = compiled(tiny.model(), optimizer)
        job._state.prepare(model)
        own = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        assert own.aggregate_gradients.__module__ == "tfdist.strategies.keras2_gradients"
    for optimizer in (
        tf.keras.optimizers.legacy.Adam(0.1),
        job.wrap_optimizer(tf.keras.optimizers.legacy.Adam(0.1)),
    ):
        model = compiled(tiny.model(), optimizer)
        job._state.prepare(model)
        aggregator = model.optimizer.gradient_aggregator
        assert aggregator.__module__ == "tfdist.strategies.keras2_gradients"
    model = compiled(tiny.model(), hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)))
    job._state.prepare(model)
    assert type(model.optimizer).__module__.startswith("horovod.")


def test_horovod_accepts_a_custom_train_step(tiny: TinyTraining) -> None:
    class CustomTrainStep(tf.keras.Model):
        def train_step(self, data: Any) -> dict[str, float]:
            return {}

    base = tiny.model()
    model = CustomTrainStep(base.inputs, base.outputs)
    job_of("horovod")._state.prepare(compiled(model, "sgd"))


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_gradients_are_sent_in_the_requested_dtype(tiny: TinyTraining, strategy: str) -> None:
    job = job_of(strategy, gradient_dtype="float16")
    with job.scope():
        model = compiled(tiny.model(), "sgd")
        job._state.prepare(model)
    assert "aggregate_gradients" in vars(model.optimizer)


def test_automatic_steps_per_execution_are_rejected_with_several_tasks(
    tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("multi_worker_mirrored")
    model = compiled(tiny.model(), "sgd", steps_per_execution="auto")
    job._state.prepare(model)

    peers = ("worker:0", "worker:1")
    together = dataclasses.replace(job.topology, peers=peers)
    monkeypatch.setattr(type(job._strategy), "topology", together)
    with pytest.raises(UsageError, match=r"^steps_per_execution: received 'auto'"):
        job._state.prepare(model)
