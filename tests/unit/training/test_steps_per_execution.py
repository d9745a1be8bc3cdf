"""Short steps become executions of several steps, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import TinyTraining, keras_is_3
from tfdist.compat import replaced
from tfdist.config.flags import JobFlags
from tfdist.training import steps_per_execution
from tfdist.training.steps_per_execution import StepsPerExecution

pytestmark = pytest.mark.stacks("2.15", "newest")

EPOCHS = 3


class Clock:
    """Makes each measured step take `seconds`; counts executions."""

    def __init__(self, seconds: float) -> None:
        self._times: Iterator[int] = count()
        self._seconds = seconds
        self.executions = 0

    def __call__(self) -> float:
        return next(self._times) * self._seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Clock]:
    """Measures the first two steps only, with a clock for a number of seconds per step."""

    def use(seconds: float) -> Clock:
        clock = Clock(seconds)
        monkeypatch.setattr(steps_per_execution, "_FIRST_MEASURED", 2)
        monkeypatch.setattr(steps_per_execution, "_MEASURED_SECONDS", 0.0)
        create = StepsPerExecution.__init__
        monkeypatch.setattr(
            StepsPerExecution,
            "__init__",
            lambda self, *args, **options: create(self, *args, **options, clock=clock),
        )
        end = StepsPerExecution.on_train_batch_end

        def counted(callback: StepsPerExecution, batch: int, logs: Any = None) -> None:
            clock.executions += 1
            end(callback, batch, logs)

        monkeypatch.setattr(StepsPerExecution, "on_train_batch_end", counted)
        return clock

    return use


def of_unknown_length(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Fewer batches than an execution has steps, which Keras does not know."""
    return dataset.filter(lambda *_: True)


class PredictsAfterEpochs(tf.keras.callbacks.Callback):
    def __init__(self, points: np.ndarray) -> None:
        super().__init__()
        self._points = points
        self.results: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        batches = tf.data.Dataset.from_tensor_slices(self._points).batch(7)
        self.results.append(self.model.predict(of_unknown_length(batches), verbose=0))


class ActsOnBatches(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


def fit(
    tiny: TinyTraining,
    path: Path,
    *,
    compiled: int | None = None,
    save_steps: int | None = None,
    callbacks: tuple[Any, ...] = (),
    epochs: int = EPOCHS,
    has_length: bool = True,
) -> tf.keras.callbacks.History:
    def build() -> tf.keras.Model:
        model = tiny.model()
        # Keras 3 does not accept None.
        options = {} if compiled is None else {"steps_per_execution": compiled}
        model.compile(model.optimizer, model.loss, metrics=["accuracy"], **options)
        return model

    return tiny.job().fit(
        build,
        tiny.train_input,
        epochs=epochs,
        output_dir=str(path),
        validation=lambda context: (
            tiny.eval_input(context) if has_length else of_unknown_length(tiny.eval_input(context))
        ),
        save_steps=save_steps,
        callbacks=callbacks,
        verbose=0,
    )


def state(history: tf.keras.callbacks.History) -> list[np.ndarray]:
    return [each.numpy() for each in history.model.variables] + [
        each.numpy() for each in history.model.optimizer.variables
    ]


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize(
    ("save_steps", "executions"),
    [
        # Single steps until one of five steps can begin with the second epoch.
        (None, 5 + 2),
        # Executions of 4 steps, because a checkpoint is due after them, and of the last one.
        (4, 5 + 2 * 2),
    ],
)
def test_weights_metrics_and_checkpoints_are_those_of_single_steps(
    save_steps: int | None,
    executions: int,
    has_length: bool,
    tiny: TinyTraining,
    tmp_path: Path,
    clock: Callable[[float], Clock],
) -> None:
    predicts = PredictsAfterEpochs(tiny.points), PredictsAfterEpochs(tiny.points)
    options: dict[str, Any] = {"save_steps": save_steps, "has_length": has_length}
    single = fit(tiny, tmp_path / "1", compiled=1, callbacks=(predicts[0],), **options)
    monitored = clock(0.02)
    several = fit(tiny, tmp_path / "n", callbacks=(predicts[1],), **options)

    for one, other in zip(state(single), state(several), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert single.history[name] == several.history[name]
    np.testing.assert_array_equal(predicts[0].results, predicts[1].results)
    saved = [
        sorted(each.name for each in (tmp_path / run / "checkpoints").iterdir()) for run in "1n"
    ]
    assert saved[0] == saved[1]
    assert monitored.executions == executions


def test_a_resumed_job_goes_on_with_several_steps(
    tiny: TinyTraining, tmp_path: Path, clock: Callable[[float], Clock]
) -> None:
    single = fit(tiny, tmp_path / "1", compiled=1)
    clock(0.001)
    fit(tiny, tmp_path / "n", epochs=1)
    several = fit(tiny, tmp_path / "n")
    for one, other in zip(state(single), state(several), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seconds", [0.025, 1.0])
def test_long_steps_stay_single(
    seconds: float, tiny: TinyTraining, tmp_path: Path, clock: Callable[[float], Clock]
) -> None:
    monitored = clock(seconds)
    fit(tiny, tmp_path)
    assert monitored.executions == EPOCHS * tiny.steps


# Keras 3 does not know whether it was called with 1.
@pytest.mark.parametrize("compiled", [2] if keras_is_3() else [1, 2])
def test_the_value_of_the_script_wins(
    compiled: int, tiny: TinyTraining, tmp_path: Path, clock: Callable[[float], Clock]
) -> None:
    monitored = clock(0.001)
    fit(tiny, tmp_path, compiled=compiled)
    assert monitored.executions == 0


def test_a_later_fit_of_the_model_makes_single_steps(
    tiny: TinyTraining, tmp_path: Path, clock: Callable[[float], Clock]
) -> None:
    clock(0.02)
    model = fit(tiny, tmp_path, epochs=2).model
    before = int(model.optimizer.iterations)
    callback = ActsOnBatches()
    batches = tf.data.Dataset.from_tensor_slices((tiny.points, tiny.classes)).batch(5)
    model.fit(batches, callbacks=[callback], verbose=0)
    assert callback.batches == int(model.optimizer.iterations) - before == tiny.steps


def test_keras_3_10_keeps_single_steps(tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_per_execution.keras_compat, "keras_version", lambda _: (3, 10))
    with replaced.fitting():
        state, model = tiny.job()._state, tiny.model()
        assert steps_per_execution.callbacks(state, model, [], save_steps=None) == []


@pytest.mark.horovod
def test_local_sgd_averages_between_steps(tiny: TinyTraining) -> None:
    for period, expected in ((None, 1), (2, 0)):
        flags = JobFlags.of(strategy="horovod", sync_period=period)
        state = tfdist.entry.create(flags, {})._state
        with replaced.fitting():
            model = tiny.model()
            found = steps_per_execution.callbacks(state, model, [], save_steps=None)
            assert len(found) == expected


def test_a_callback_that_acts_on_batches_gets_each_one(
    tiny: TinyTraining,
    tmp_path: Path,
    clock: Callable[[float], Clock],
    capfd: pytest.CaptureFixture[str],
) -> None:
    clock(0.001)
    callback = ActsOnBatches()
    on_epochs = tf.keras.callbacks.ModelCheckpoint(str(tmp_path / "own.keras"))
    fit(tiny, tmp_path / "output", callbacks=(callback, on_epochs))
    assert callback.batches == EPOCHS * tiny.steps
    said = [line for line in capfd.readouterr().err.splitlines() if "acts on each" in line]
    assert len(said) == 1
    assert "a step takes 1 ms, and ActsOnBatches acts on each of them" in said[0]
