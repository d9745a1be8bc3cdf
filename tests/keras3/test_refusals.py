"""Options that Keras 3 does not support under a strategy are rejected before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import TinyTraining
from tfdist.compat import versions
from tfdist.compat.checks import check_model_of_keras_3
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.upstream.keras3_optimizer import apply_reduced

pytestmark = pytest.mark.stacks("2.21", horovod=("newest",))


def compiled(**options: Any) -> tf.keras.Model:
    inputs = tf.keras.Input([4])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3)(inputs))
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


def test_unsupported_options_of_compile_are_rejected() -> None:
    check_model_of_keras_3(compiled(), "multi_worker_mirrored")
    with pytest.raises(UsageError, match="steps_per_execution: received 2"):
        check_model_of_keras_3(compiled(steps_per_execution=2), "multi_worker_mirrored")


@pytest.mark.parametrize(
    "options", [{"clipnorm": 1.0}, {"clipvalue": 1.0}, {"global_clipnorm": 1.0}], ids=str
)
def test_an_optimizer_that_clips_is_wrapped_by_fit(options: dict[str, Any]) -> None:
    job = tfdist.entry.create(JobFlags.of(strategy="mirrored"), {})
    with job.scope():
        model = compiled(optimizer=tf.keras.optimizers.SGD(0.1, **options))
        job._state.prepare(model)
    assert "apply" in vars(model.optimizer)


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=str,
)
def test_an_optimizer_that_skips_updates_is_rejected(options: dict[str, Any]) -> None:
    optimizer = apply_reduced(
        tf.keras.optimizers.SGD(0.1, **options), lambda gradients, _: gradients
    )
    with pytest.raises(UsageError, match="accepted: None under mirrored"):
        check_model_of_keras_3(compiled(optimizer=optimizer), "mirrored")


def test_a_model_of_another_keras_is_rejected(tmp_path: Path, tiny: TinyTraining) -> None:
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Input([4]), tf_keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    job = tiny.job()
    with pytest.raises(UsageError, match="TF_USE_LEGACY_KERAS=1"):
        model.fit(job.dataset(tiny.train_input), callbacks=job.callbacks(str(tmp_path)), verbose=0)


def test_a_loss_scale_optimizer_around_a_wrapped_optimizer_is_rejected() -> None:
    job = tfdist.entry.create(JobFlags.of(strategy="mirrored"), {})
    scales_loss = tf.keras.optimizers.LossScaleOptimizer
    with job.scope():
        scaled = scales_loss(job.wrap_optimizer(tf.keras.optimizers.SGD(0.1)))
        with pytest.raises(UsageError, match=r"around a wrapped optimizer"):
            job._state.prepare(compiled(optimizer=scaled))

        model = compiled(optimizer=scales_loss(tf.keras.optimizers.SGD(0.1)))
        job._state.prepare(model)
    assert "apply" in vars(model.optimizer)


def test_loss_scaling_under_central_storage_is_rejected() -> None:
    job = tfdist.entry.create(JobFlags.of(strategy="central_storage"), {})
    with job.scope():
        job._state.prepare(compiled(optimizer=job.wrap_optimizer(tf.keras.optimizers.SGD(0.1))))

        scaled = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
        with pytest.raises(UsageError, match="--strategy=mirrored"):
            job._state.prepare(compiled(optimizer=job.wrap_optimizer(scaled)))


def test_objects_created_outside_the_scope_are_rejected() -> None:
    job = tfdist.entry.create(JobFlags.of(strategy="mirrored"), {})
    outside = tf.keras.optimizers.SGD(0.1)
    with pytest.raises(UsageError, match=r"^model: received .created or compiled outside job"):
        job._state.prepare(compiled(optimizer=outside))
    with job.scope():
        model = compiled(optimizer=outside)
        with pytest.raises(UsageError, match=r"^optimizer: received .created or compiled outside"):
            job._state.prepare(model)
        # The check runs before Keras creates the variables, which would raise a RuntimeError.
        with pytest.raises(UsageError, match=r"^optimizer: received .created or compiled outside"):
            job.wrap_optimizer(outside)
        optimizer = job.wrap_optimizer(tf.keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse", metrics=["mae"])
        job._state.prepare(model)
    model.compile(optimizer, "mse")
    with pytest.raises(UsageError, match=r"^metrics: received .created or compiled outside"):
        job._state.prepare(model)


def test_a_dataset_made_from_that_of_the_job_is_rejected(tiny: TinyTraining) -> None:
    job = tfdist.entry.create(JobFlags.of(strategy="mirrored"), {})
    with job.scope():
        model = tiny.model()
    with pytest.raises(UsageError, match="Apply the transformation in the input function"):
        model.fit(job.dataset(tiny.train_input).take(1), verbose=0)


def test_a_keras_version_that_is_silently_wrong_is_rejected(
    tmp_path: Path, tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, model = tiny.job(), tiny.model()
    monkeypatch.setattr(type(job._strategy), "name", "mirrored")
    monkeypatch.setattr("keras.__version__", "3.9.2")

    with pytest.raises(UsageError, match=r"install 'keras>=3\.10'"):
        model.fit(job.dataset(tiny.train_input), callbacks=job.callbacks(str(tmp_path)), verbose=0)
    assert not (tmp_path / "checkpoints").exists(), "training should not have started"


def test_an_optimizer_of_another_keras_is_rejected() -> None:
    import tf_keras

    with pytest.raises(UsageError, match="Import both from keras"):
        versions.check_same_keras(compiled(), tf_keras.optimizers.SGD())


@pytest.mark.horovod
def test_horovods_own_wrapper_is_rejected(tmp_path: Path, tiny: TinyTraining) -> None:
    import horovod.tensorflow as hvd

    job = tfdist.entry.create(JobFlags.of(strategy="horovod"), {})
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    with pytest.raises(UsageError, match=r"hvd\.DistributedOptimizer"):
        job._state.prepare(compiled(optimizer=optimizer))

    model = compiled(optimizer=tf.keras.optimizers.SGD(0.1))
    job._state.prepare(model)
    assert "apply" in vars(model.optimizer)
