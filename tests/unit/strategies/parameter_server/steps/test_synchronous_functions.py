"""The functions of a synchronous step, traced and called in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import train_steps
from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.steps.exchange import Exchange
from tfdist.strategies.parameter_server.steps.synchronous_functions import Functions, Synchronous
from tfdist.strategies.parameter_server.transfers.recorder import Recorder

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")

POINTS = np.arange(12, dtype="float32").reshape(6, 2) / 10


def compiled(recorder: Recorder | None) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(recorder.wrap(optimizer) if recorder else optimizer, "mse", metrics=["mae"])
    optimizer.build(model.trainable_variables)
    return model


def batches(points: np.ndarray, size: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((points, points[:, :1])).batch(size)


def functions_of(
    model: tf.keras.Model, recorder: Recorder, packs: bool = True, is_known: bool = True
) -> Functions:
    def step(iterator: Any) -> Any:
        return model.train_step(next(iterator))

    spec = tf.data.IteratorSpec(batches(POINTS).element_spec)
    known = model if is_known else None
    synchronous = Synchronous(2, 0.0, Exchange(2, ""), recorder=recorder, model=known)
    return Functions(tf.distribute.get_strategy(), synchronous, step, spec, packs=packs)


@pytest.mark.parametrize("packs", [True, False])
def test_two_workers_update_as_one_process_does(packs: bool) -> None:
    expected, recorder = compiled(None), Recorder()
    expected.fit(batches(POINTS[:4], size=4), verbose=0)

    model = compiled(recorder)
    functions = functions_of(model, recorder, packs)
    before = model.get_weights()
    made = [functions.make(iter(batches(part))) for part in (POINTS[:2], POINTS[2:4])]
    assert [steps for steps, _ in made] == [1, 1]
    # The workers' steps leave the weights as they are.
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    functions.apply(*[tensor for _, (_, contribution) in made for tensor in contribution])
    assert int(model.optimizer.iterations) == 1
    for weight, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=0, atol=1e-6)


def test_the_metrics_cover_the_steps_of_all_workers() -> None:
    recorder = Recorder()
    model = compiled(recorder)
    functions = functions_of(model, recorder)
    for part in (POINTS[:2], POINTS[2:4]):
        functions.make(iter(batches(part)))
    results = functions.metric_results()
    errors = np.abs(model.predict(POINTS[:4], verbose=0) - POINTS[:4, :1])
    assert set(results) == {"loss", "mae"}
    np.testing.assert_allclose(results["mae"], errors.mean(), rtol=1e-5)
    np.testing.assert_allclose(results["loss"], (errors**2).mean(), rtol=1e-5)


def test_a_worker_without_data_contributes_zeros() -> None:
    recorder = Recorder()
    model = compiled(recorder)
    functions = functions_of(model, recorder)
    steps, (_, contribution) = functions.make(iter(batches(POINTS[:0])))
    assert steps == 0
    assert all(not tensor.numpy().any() for tensor in contribution)


@pytest.mark.parametrize("is_known", [True, False])
def test_steps_of_a_model_without_callbacks_say_what_is_not_exact(
    is_known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    functions_of(compiled(recorder), recorder, is_known=is_known)
    assert ("training without job.callbacks: " in capsys.readouterr().err) is not is_known


def test_a_step_with_another_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="a train step without an optimizer of this job"):
        functions_of(compiled(None), Recorder())


@pytest.mark.parametrize(
    ("case", "use"), [("in_turn", "reads"), ("teacher", "reads"), ("clip", "assigns to")]
)
def test_a_step_that_needs_its_own_update_is_refused(case: str, use: str) -> None:
    recorder, model = Recorder(), train_steps.compiled(case)
    for optimizer in keras_compat.optimizers_of(model):
        recorder.wrap(optimizer)
    spec = tf.data.IteratorSpec(train_steps.dataset(tf.distribute.InputContext(), 8).element_spec)
    with pytest.raises(UsageError, match=f"a step that {use} .* after an optimizer has updated it"):
        Functions(
            tf.distribute.get_strategy(),
            Synchronous(2, 0.0, Exchange(2, ""), recorder=recorder, model=model),
            lambda iterator: model.train_step(next(iterator)),
            spec,
            packs=True,
        )
