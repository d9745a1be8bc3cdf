"""What a compiled model of Keras 2 is refused for, before it trains other than it seems to."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import tfdist.start
from tests.conftest import TinyTraining
from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.job import Job


def job_of(strategy: str, **flags: Any) -> Job:
    return tfdist.start.create(JobFlags(strategy=strategy, **flags), {})


def compiled(model: tf.keras.Model, optimizer: Any, **options: Any) -> tf.keras.Model:
    model.compile(optimizer, "sparse_categorical_crossentropy", **options)
    return model


def test_horovod_wants_an_optimizer_that_averages(tiny: TinyTraining) -> None:
    import horovod.tensorflow as hvd

    job = job_of("horovod")
    with pytest.raises(UsageError, match=r"^optimizer: received .SGD as it is, whose gradients"):
        job.run.prepare(compiled(tiny.model(), "sgd"))

    scales_loss = tf.keras.mixed_precision.LossScaleOptimizer
    for optimizer in (
        job.optimizer(tf.keras.optimizers.SGD(0.1)),
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)),
        job.optimizer(tf.keras.optimizers.legacy.Adam(0.1)),
        scales_loss(job.optimizer(tf.keras.optimizers.SGD(0.1))),
    ):
        job.run.prepare(compiled(tiny.model(), optimizer))


def test_horovod_takes_a_train_step_of_the_users_own(tiny: TinyTraining) -> None:
    class AveragesItself(tf.keras.Model):
        def train_step(self, data: Any) -> dict[str, float]:
            return {}

    whole = tiny.model()
    model = AveragesItself(whole.inputs, whole.outputs)
    job_of("horovod").check(compiled(model, "sgd"))


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_gradients_that_would_be_sent_as_they_are(tiny: TinyTraining, strategy: str) -> None:
    job = job_of(strategy, gradient_dtype="float16")
    with job.scope():
        with pytest.raises(UsageError, match=r"^--gradient_dtype: received .float16 with SGD as"):
            job.run.prepare(compiled(tiny.model(), "sgd"))
        job.run.prepare(compiled(tiny.model(), job.optimizer(tf.keras.optimizers.SGD(0.1))))


def test_each_task_may_not_choose_its_own_steps(
    tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("multi_worker_mirrored")
    model = compiled(tiny.model(), "sgd", steps_per_execution="auto")
    job.run.prepare(model)

    together = ("worker:0", ("worker:0", "worker:1"))
    monkeypatch.setattr(type(job), "trainers", together)
    with pytest.raises(UsageError, match=r"^steps_per_execution: received 'auto'"):
        job.run.prepare(model)
