"""`job.callbacks` in a real `fit`: output files, resuming and completion."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, file_size_limit, keras_is_3
from tfdist.errors import OutputError, UsageError
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.callbacks import MetricsLog
from tfdist.training.summaries import Summaries

pytestmark = pytest.mark.stacks("2.15", "newest")


class Interruption(Exception):
    pass


class Interrupt(tf.keras.callbacks.Callback):
    """Interrupts `fit` in the middle of epoch 3, or at its end before the checkpoint."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._where == "in_epoch" and (self._epoch, batch) == (3, 1):
            raise Interruption

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._where == "before_checkpoint" and epoch + 1 == 3:
            raise Interruption


class StopAfter(tf.keras.callbacks.Callback):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch + 1 >= self._epochs


def train(
    tiny: TinyTraining,
    output: Path,
    epochs: int,
    *,
    extra: tf.keras.callbacks.Callback | None = None,
    keep: int = 5,
    seed: int = 1,
) -> tf.keras.callbacks.History:
    """One run of a script; `extra` runs just before the checkpoint of an epoch is saved.

    Returns:
      The history; its attribute `trained` has the epochs that this run has trained.
    """
    job = tiny.job()
    callbacks = job.callbacks(str(output), keep=keep)
    begun = EpochsBegun()
    history = tiny.model(seed).fit(
        job.dataset(tiny.train_input),
        validation_data=job.eval_dataset(tiny.eval_input),
        epochs=epochs,
        callbacks=[begun, *callbacks[:-1], *([extra] if extra else []), callbacks[-1]],
        verbose=0,
    )
    history.trained = begun._epochs
    return history


class EpochsBegun(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        # Without an underscore, a checkpoint would have it.
        self._epochs: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epochs.append(epoch)


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(one: tf.keras.Model, other: tf.keras.Model) -> None:
    """Checks that the weights, and the optimizer's slots and steps, are bitwise equal."""
    for left, right in zip(
        (*one.variables, *one.optimizer.variables),
        (*other.variables, *other.optimizer.variables),
        strict=True,
    ):
        np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_training_writes_the_expected_output_files(tiny: TinyTraining, tmp_path: Path) -> None:
    history = train(tiny, tmp_path, 3, keep=2)

    assert sorted(os.listdir(tmp_path)) == [
        "checkpoints",
        "done.json",
        "events.jsonl",
        "lock.json",
        "logs",
        "metrics.jsonl",
        "saved_model",
    ]
    assert sorted(os.listdir(tmp_path / "logs")) == ["train", "validation"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.index")) == [
        "ckpt-10.index",
        "ckpt-15.index",
    ]
    done = json.loads((tmp_path / "done.json").read_text())
    assert (done["finished"], done["epochs"]) == (3, 3)
    saved = tmp_path / "saved_model"
    loaded = tf.keras.models.load_model(saved / "model.keras" if keras_is_3() else saved)
    np.testing.assert_allclose(
        loaded.predict(tiny.points, verbose=0),
        history.model.predict(tiny.points, verbose=0),
        rtol=1e-5,
    )

    records = metrics(tmp_path)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["step"] for record in records] == [5, 10, 15]
    for index, record in enumerate(records):
        logs = {name: values[index] for name, values in history.history.items()}
        assert record == {**logs, **{name: record[name] for name in ("epoch", "step", "time")}}
        assert record["examples_per_second"] > 0
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < set(records[0])


def test_more_epochs_resume_after_the_last_run(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny, tmp_path / "twice", 2)
    assert "resuming" not in capsys.readouterr().err

    resumed = train(tiny, tmp_path / "twice", 4, seed=2)

    resuming = f"tfdist: resuming after epoch 2 of 4 and 10 steps in {tmp_path / 'twice'}\n"
    told = capsys.readouterr().err
    assert resuming in told and "a batch of" not in told
    assert resumed.trained == [2, 3]
    at_once = train(tiny, tmp_path / "once", 4)
    assert_same_weights(resumed.model, at_once.model)
    for records in (metrics(tmp_path / "twice"), metrics(tmp_path / "once")):
        assert [(record["epoch"], record["step"]) for record in records] == [
            (1, 5),
            (2, 10),
            (3, 15),
            (4, 20),
        ]
    tiny.batch_size = 8
    train(tiny, tmp_path / "once", 5)
    assert "warning: a batch of a replica had 5 examples, now it has 8\n" in capsys.readouterr().err


def test_a_complete_training_runs_no_epochs(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(tiny, tmp_path, 3)
    before = metrics(tmp_path)
    capsys.readouterr()

    again = train(tiny, tmp_path, 3, seed=2)

    complete = f"tfdist: training is complete after 3 epochs and 15 steps in {tmp_path}\n"
    assert complete in capsys.readouterr().err
    assert again.trained == []
    assert_same_weights(again.model, first.model)
    assert metrics(tmp_path) == before
    assert json.loads((tmp_path / "done.json").read_text())["finished"] == 3


@pytest.mark.parametrize("where", ["in_epoch", "before_checkpoint"])
def test_an_interrupted_training_gives_bitwise_equal_weights(
    where: str, tiny: TinyTraining, tmp_path: Path
) -> None:
    with pytest.raises(Interruption):
        train(tiny, tmp_path / "interrupted", 5, extra=Interrupt(where))
    assert not (tmp_path / "interrupted" / "done.json").exists()

    resumed = train(tiny, tmp_path / "interrupted", 5, seed=2)

    assert resumed.trained == [2, 3, 4]
    uninterrupted = train(tiny, tmp_path / "uninterrupted", 5)
    assert_same_weights(resumed.model, uninterrupted.model)
    curves = [
        [(record["epoch"], record["step"], record["loss"]) for record in metrics(tmp_path / name)]
        for name in ("interrupted", "uninterrupted")
    ]
    assert curves[0] == curves[1]
    assert [epoch for epoch, _, _ in curves[0]] == [1, 2, 3, 4, 5]


def test_a_training_that_stopped_early_is_complete(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = train(tiny, tmp_path, 10, extra=StopAfter(2))
    assert stopped.epoch == [0, 1]
    done = json.loads((tmp_path / "done.json").read_text())
    assert (done["finished"], done["epochs"]) == (2, 10)
    capsys.readouterr()

    again = train(tiny, tmp_path, 10, seed=2)

    assert "training is complete after 2 epochs and 10 steps" in capsys.readouterr().err
    assert again.trained == []
    assert_same_weights(again.model, stopped.model)
    assert [record["epoch"] for record in metrics(tmp_path)] == [1, 2]

    assert train(tiny, tmp_path, 11).trained == list(range(2, 11))


def test_resuming_removes_the_completion_marker(tiny: TinyTraining, tmp_path: Path) -> None:
    train(tiny, tmp_path, 2)

    with pytest.raises(Interruption):
        train(tiny, tmp_path, 4, extra=Interrupt("in_epoch"))

    assert not (tmp_path / "done.json").exists()


def test_the_history_is_that_of_the_whole_training(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(tiny, tmp_path, 2)
    resumed = train(tiny, tmp_path, 3)
    complete = train(tiny, tmp_path, 3)
    capsys.readouterr()
    fewer = train(tiny, tmp_path, 1, seed=2)

    assert (
        "nothing to train up to epoch 1: the weights and the history are those after 3 epochs and "
        f"15 steps in {tmp_path}\n"
    ) in capsys.readouterr().err
    assert_same_weights(fewer.model, resumed.model)
    assert fewer.history == complete.history
    assert (first.epoch, resumed.epoch, complete.epoch) == ([0, 1], [0, 1, 2], [0, 1, 2])
    assert fewer.epoch == complete.epoch
    assert resumed.history["loss"][:2] == first.history["loss"]
    logged = metrics(tmp_path)
    for name in ("loss", "val_loss", "examples_per_second"):
        expected = [record[name] for record in logged]
        np.testing.assert_allclose(resumed.history[name], expected)
        np.testing.assert_allclose(complete.history[name], expected)
    assert "step" not in complete.history


def test_a_completion_marker_without_its_checkpoint_is_ignored(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    train(tiny, tmp_path, 2)
    shutil.rmtree(OutputDirectory(tmp_path).checkpoints)

    history = train(tiny, tmp_path, 2)

    assert history.trained == [0, 1]


def test_a_fit_that_ran_out_of_data_is_not_complete(tiny: TinyTraining, tmp_path: Path) -> None:
    job, model = tiny.job(), tiny.model()
    model.fit(
        job.dataset(lambda context: tiny.train_input(context).filter(lambda *_: True)),
        epochs=3,
        steps_per_epoch=tiny.steps + 1,
        callbacks=job.callbacks(str(tmp_path)),
        verbose=0,
    )

    # Keras 2 stops there; Keras 3 continues with the next epochs.
    assert OutputDirectory(tmp_path).done.exists() == keras_is_3()


def test_a_complete_training_of_a_model_without_an_input_shape_is_detected(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    for _ in range(2):
        job = tiny.job()
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        callbacks = job.callbacks(str(tmp_path))
        model.fit(job.dataset(tiny.train_input), callbacks=callbacks, verbose=0)

    assert OutputDirectory(tmp_path).done.exists()


def test_leftovers_are_removed_before_the_training(tiny: TinyTraining, tmp_path: Path) -> None:
    leftover = tmp_path / "checkpoints" / "ckpt-2_temp"
    leftover.mkdir(parents=True)

    train(tiny, tmp_path, 1)

    assert not leftover.exists()


def test_an_unwritable_directory_is_rejected_before_the_first_epoch(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").touch()

    with pytest.raises(UsageError, match="output_dir: received '/"):
        tiny.job().callbacks(str(tmp_path))


class Limit(tf.keras.callbacks.Callback):
    """Limits the size of files that the process can write, from a given epoch."""

    def __init__(self, limits: ExitStack, epoch: int, size: int) -> None:
        super().__init__()
        self._limits, self._epoch, self._size = limits, epoch, size

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 == self._epoch:
            self._limits.enter_context(file_size_limit(self._size))


@pytest.mark.parametrize(
    ("size", "file", "others"),
    [
        (100, "logs/train", MetricsLog),
        (1000, r"checkpoints/ckpt-\d+", (MetricsLog, Summaries)),
    ],
    ids=["summaries", "checkpoint"],
)
def test_a_failed_write_stops_the_training(
    size: int, file: str, others: Any, tiny: TinyTraining, tmp_path: Path
) -> None:
    """Keras would interpret the error for a file that is too large as the end of the data."""
    job = tiny.job()
    # The others may reach the limit first.
    callbacks = [each for each in job.callbacks(str(tmp_path)) if not isinstance(each, others)]
    with ExitStack() as limits, pytest.raises(OutputError, match=f"{file} could not be written"):
        tiny.model().fit(
            job.dataset(tiny.train_input),
            epochs=5,
            callbacks=[Limit(limits, 3, size), *callbacks],
            verbose=0,
        )

    assert not (tmp_path / "done.json").exists()
    # The checkpoint of epoch 2 may have been under way when the limit was set.
    assert train(tiny, tmp_path, 5).trained in ([2, 3, 4], [1, 2, 3, 4])


def test_the_weights_after_all_other_callbacks_are_exported_and_returned_again(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    """EarlyStopping restores the weights with the highest loss here: those of the first epoch."""
    job, model = tiny.job(), tiny.model()
    stops = tf.keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    model.fit(
        job.dataset(tiny.train_input),
        epochs=5,
        callbacks=[*job.callbacks(str(tmp_path)), stops],
        verbose=0,
    )
    assert stops.stopped_epoch == 1
    points = tiny.points[:5]
    serve = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
    (served,) = serve(tf.constant(points)).values()
    np.testing.assert_allclose(served.numpy(), model.predict(points, verbose=0), rtol=1e-5)

    again = train(tiny, tmp_path, 5, seed=2)
    assert again.trained == []
    assert_same_weights(again.model, model)
    # A longer training goes on from the last checkpoint. Keras 2 restores before it is saved.
    longer = train(tiny, tmp_path, 6, seed=2)
    assert longer.trained == [2, 3, 4, 5]
    assert not (tmp_path / "final").exists()
    if keras_is_3():
        assert_same_weights(longer.model, train(tiny, tmp_path / "plain", 6).model)
