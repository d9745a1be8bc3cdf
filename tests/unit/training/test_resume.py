"""Resuming in mid-epoch, saving within epochs, and exiting on a signal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.compat import keras as keras_compat
from tfdist.coordination.preemption import SIGNALS
from tfdist.data.inputs import DatasetFunction
from tfdist.errors import EXIT_PREEMPTED
from tfdist.storage.checkpointer import Checkpointer, Position
from tfdist.training.callback_states import CallbackStates

pytestmark = pytest.mark.stacks("2.15", "newest")


EPOCHS = 3


class Stop(Exception):
    pass


class AtStep(tf.keras.callbacks.Callback):
    """Runs an action after a step, counted from 1 over all epochs of this `fit`."""

    def __init__(self, step: int, action: Any) -> None:
        super().__init__()
        self._remaining = step
        self._action = action

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            self._action()


def stop() -> None:
    raise Stop


def train(
    tiny: TinyTraining,
    output: Path,
    *,
    at: AtStep | None = None,
    dataset_fn: DatasetFunction | None = None,
    **options: Any,
) -> tf.keras.Model:
    job, model = tiny.job(), tiny.model()
    job._state.preemption.listen()
    callbacks = job.callbacks(str(output), save_steps=2)
    model.fit(
        job.dataset(dataset_fn or tiny.train_input),
        epochs=EPOCHS,
        callbacks=[*callbacks, *([at] if at else [])],
        verbose=0,
        **options,
    )
    return model


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (*SIGNALS, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def assert_equal(model: tf.keras.Model, expected: tf.keras.Model) -> None:
    assert model.optimizer.iterations.numpy() == expected.optimizer.iterations.numpy()
    assert_equal_weights(model, expected)


def assert_equal_weights(model: tf.keras.Model, expected: tf.keras.Model) -> None:
    for found, weights in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, weights)


def unknown_size(tiny: TinyTraining) -> DatasetFunction:
    return lambda context: tiny.train_input(context).filter(lambda *_: True)


@pytest.mark.parametrize("step", [1, 4, 5, 8])
@pytest.mark.parametrize("known_size", [True, False])
def test_a_job_interrupted_in_mid_epoch_gives_the_same_weights(
    tiny: TinyTraining, tmp_path: Path, step: int, known_size: bool
) -> None:
    dataset_fn = None if known_size else unknown_size(tiny)
    uninterrupted = train(tiny, tmp_path / "uninterrupted", dataset_fn=dataset_fn)
    with pytest.raises(Stop):
        train(tiny, tmp_path / "cut", at=AtStep(step, stop), dataset_fn=dataset_fn)
    model = train(tiny, tmp_path / "cut", dataset_fn=dataset_fn)
    if known_size:
        assert_equal(model, uninterrupted)
    else:
        # In each `fit`, Keras counts one extra update when it finds the end of the first epoch.
        assert_equal_weights(model, uninterrupted)


def test_with_several_steps_per_execution_the_checkpoint_is_saved_after_the_execution(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    job, model = tiny.job(), tiny.model()
    model.compile("sgd", model.loss, steps_per_execution=2)
    callbacks = job.callbacks(str(tmp_path), save_steps=3)
    model.fit(job.dataset(tiny.train_input), epochs=2, callbacks=callbacks, verbose=0)

    # Executions end after 2, 4 and 5 steps.
    saved = {path.stem for path in (tmp_path / "checkpoints").glob("*.index")}
    assert saved == {"ckpt-4", "ckpt-5", "ckpt-9", "ckpt-10"}


@pytest.mark.parametrize(
    ("step", "number"), [(1, signal.SIGTERM), (5, signal.SIGTERM), (7, signal.SIGINT)]
)
def test_a_signal_saves_a_checkpoint_and_exits_after_the_step(
    tiny: TinyTraining,
    tmp_path: Path,
    step: int,
    number: signal.Signals,
    capfd: pytest.CaptureFixture[str],
) -> None:
    uninterrupted = train(tiny, tmp_path / "uninterrupted")
    signalled = AtStep(step, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as exit_:
        train(tiny, tmp_path / "cut", at=signalled)
    assert exit_.value.code == EXIT_PREEMPTED
    err = capfd.readouterr().err
    assert f"{number.name}: saving and exiting" in err
    saved = re.search(r"saved after (.*), exiting", err)
    assert saved, err
    place = saved[1]
    assert place == "epoch 1" if step == 5 else re.fullmatch(r"step [1-4] of epoch [12]", place)
    assert_equal(train(tiny, tmp_path / "cut"), uninterrupted)
    assert f"resuming after {place} of {EPOCHS} and " in capfd.readouterr().err


@pytest.mark.parametrize("place", ["gather", "end_step"])
def test_a_stop_of_another_thread_waits_for_the_other_tasks(
    tiny: TinyTraining,
    tmp_path: Path,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The thread stops the training while this task talks to the other, which does the same."""
    job, model = tiny.job(), tiny.model()
    strategy = job._strategy
    peers = replace(strategy.topology, peers=(strategy.topology.peer, "worker:1"))
    monkeypatch.setattr(type(strategy), "topology", peers)
    monkeypatch.setattr(strategy, "gather", lambda number: [number, number])
    talker = strategy if place == "gather" else job._state.preemption
    talk, calls = getattr(talker, place), []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        # The first message is about the data.
        model.stop_training |= len(calls) == (2 if place == "gather" else 1)
        return talk(*args, **options)

    monkeypatch.setattr(talker, place, interrupted)
    callbacks = job.callbacks(str(tmp_path))
    model.fit(job.dataset(tiny.train_input), epochs=3, callbacks=callbacks, verbose=0)
    # After an epoch of 5 steps, or after a step, it makes one more.
    assert model.optimizer.iterations.numpy() == (6 if place == "gather" else 2)
    where = "step 1 of epoch 2" if place == "gather" else "step 2 of epoch 1"
    assert f"stopping after {where}: {peers.peer} set stop_training" in capfd.readouterr().err


def test_a_job_with_a_different_number_of_replicas_repeats_the_epoch(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.model()
    model.optimizer.build(model.trainable_variables)
    checkpointer = Checkpointer(model, tmp_path / "checkpoints", writes=True)
    checkpointer.save(Position(1, (2, 2, 2), 3), number=7)
    trained = train(tiny, tmp_path)
    assert trained.optimizer.iterations.numpy() == (EPOCHS - 1) * tiny.steps
    told = capsys.readouterr().err
    assert "3 batches per update and 3 shards of the data. Epoch 2 is repeated from" in told


def test_an_infinite_dataset_restarts_from_the_beginning(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    read: list[int] = []

    def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
        def record(index: Any, example: Any) -> Any:
            tf.py_function(lambda number: read.append(int(number)), [index], [])
            return example

        return tiny.train_input(context).repeat().enumerate().map(record)

    with pytest.raises(Stop):
        train(tiny, tmp_path, at=AtStep(3, stop), dataset_fn=endless, steps_per_epoch=5)
    read.clear()
    model = train(tiny, tmp_path, dataset_fn=endless, steps_per_epoch=5)
    assert read[0] == 0
    assert model.optimizer.iterations.numpy() == 5 * EPOCHS


def test_checkpoints_are_saved_every_save_steps(tiny: TinyTraining, tmp_path: Path) -> None:
    train(tiny, tmp_path)
    saved = (tmp_path / "checkpoints").glob("*.index")
    # The newest five checkpoints; each epoch saves after two and four steps and at its end.
    assert sorted(int(path.stem.rpartition("-")[2]) for path in saved) == [9, 10, 12, 14, 15]


def fit_with_callbacks(
    tiny: TinyTraining, directory: Path, output: str, *, at: AtStep | None = None
) -> tuple[tf.keras.Model, dict[str, Any]]:
    """Trains with callbacks that remember; returns the model and what they remember."""
    kinds = tf.keras.callbacks
    kept = [
        kinds.EarlyStopping("val_loss", min_delta=0.05, patience=4, restore_best_weights=True),
        kinds.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, cooldown=1, min_delta=0.1),
        kinds.ModelCheckpoint(str(directory / f"{output}.keras"), save_best_only=True),
        Remembers(),
    ]
    tf.random.set_seed(2)  # Shuffles depend on it, too.
    job, model = tiny.job(), tiny.model()
    job._state.preemption.listen()
    model.fit(
        job.dataset(tiny.train_input),
        validation_data=job.eval_dataset(tiny.eval_input),
        epochs=12,
        callbacks=[*kept, *job.callbacks(str(directory / output)), *([at] if at else [])],
        verbose=0,
    )
    names = "wait", "best", "best_epoch", "stopped_epoch", "cooldown_counter", "min_delta", "losses"
    remembered = {
        f"{type(each).__name__}.{name}": getattr(each, name)
        for each in kept
        for name in names
        if hasattr(each, name)
    }
    return model, remembered


class Remembers(tf.keras.callbacks.Callback):
    """A user's own callback."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["val_loss"])


@pytest.mark.parametrize("step", [6, 15, 22])
def test_callbacks_go_on_where_they_were(tiny: TinyTraining, tmp_path: Path, step: int) -> None:
    expected, remembered = fit_with_callbacks(tiny, tmp_path, "uninterrupted")
    # It stops early, and has reduced the rate.
    assert remembered["EarlyStopping.stopped_epoch"] in range(4, 11)
    assert keras_compat.hyperparameters(expected)["learning_rate"].numpy() < 0.06

    signalled = AtStep(step, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        fit_with_callbacks(tiny, tmp_path, "cut", at=signalled)
    model, resumed = fit_with_callbacks(tiny, tmp_path, "cut")
    assert resumed == remembered
    assert_equal(model, expected)


def test_the_state_of_another_metric_is_not_taken() -> None:
    kinds = tf.keras.callbacks
    stops = kinds.EarlyStopping("val_loss"), kinds.EarlyStopping("val_accuracy", mode="max")
    for each in stops:
        each.on_train_begin()
    states = CallbackStates(stops[:1])
    stops[0].best, stops[0].wait = 0.5, 2
    changed = states.changed()
    CallbackStates(stops[1:]).restore(changed)
    assert stops[1].wait == 0
    again = kinds.EarlyStopping("val_loss")
    again.on_train_begin()
    CallbackStates([again]).restore(changed)
    assert (again.best, again.wait) == (0.5, 2)
