"""The metrics of a training: their log, TensorBoard, speed, and values that are not finite."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.job import Job
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.callbacks import ExamplesPerSecond, MetricsLog

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


class CountSteps(tf.keras.callbacks.Callback):
    """Counts the steps, as `Resume` does."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._cursor = job._state.strategy.cursor

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._cursor.saw_steps(1)


class Time(tf.keras.callbacks.Callback):
    """A fake clock: 0.5 s per training batch, 2 s in epoch 2, and 50 s per validation batch."""

    now = 10.0
    _batch_seconds = 0.5

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batch_seconds = (0.5, 2.0)[epoch]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.now += self._batch_seconds

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.now += 50.0


@pytest.mark.parametrize("validated", [False, True], ids=["without_validation", "with_validation"])
def test_examples_per_second_exclude_validation(validated: bool, tiny: TinyTraining) -> None:
    job = tiny.job()
    time = Time()

    history = tiny.model().fit(
        job.dataset(tiny.train_input),
        validation_data=job.eval_dataset(tiny.eval_input) if validated else None,
        epochs=2,
        callbacks=[time, CountSteps(job), ExamplesPerSecond(job._state, clock=lambda: time.now)],
        verbose=0,
    )

    # 5 steps with 5 examples each, in 2.5 and in 10 seconds.
    assert history.history["examples_per_second"] == [10.0, 2.5]
    assert (time.now > 100) == validated


def test_the_metrics_log_counts_from_one(tiny: TinyTraining, tmp_path: Path) -> None:
    job = tiny.job()

    history = tiny.model().fit(
        tiny.train_input(tf.distribute.InputContext()),
        initial_epoch=2,
        epochs=4,
        callbacks=[CountSteps(job), MetricsLog(job._state, OutputDirectory(tmp_path))],
        verbose=0,
    )

    assert metrics(tmp_path) == [
        {
            "epoch": 3 + index,
            "step": 5 + 5 * index,
            "time": pytest.approx(datetime.now().timestamp(), abs=60),
            "loss": history.history["loss"][index],
            "accuracy": history.history["accuracy"][index],
        }
        for index in range(2)
    ]


def test_a_resumed_training_drops_the_lines_after_its_checkpoint(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    for epochs in (2, 4):
        job = tiny.job()
        callbacks = job.callbacks(str(tmp_path))
        tiny.model().fit(
            job.dataset(tiny.train_input), epochs=epochs, callbacks=callbacks, verbose=0
        )
        assert [line["step"] for line in metrics(tmp_path)] == [5 * n for n in range(1, epochs + 1)]
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"epoch": 3}\n{"epoch": 4, "lo')


def test_data_without_a_batch_size_has_no_examples_per_second(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    job = tiny.job()

    def from_a_generator(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tiny.train_input(context)
        return tf.data.Dataset.from_generator(
            lambda: iter(dataset), output_signature=dataset.element_spec
        )

    tiny.model().fit(
        job.dataset(from_a_generator),
        epochs=1,
        callbacks=job.callbacks(str(tmp_path)),
        verbose=0,
    )

    (record,) = metrics(tmp_path)
    assert set(record) == {"epoch", "step", "time", "loss", "accuracy"}


def test_a_metric_may_be_an_array(tiny: TinyTraining, tmp_path: Path) -> None:
    job, model = tiny.job(), tiny.model()
    model.compile("sgd", "mse", metrics=[tf.keras.metrics.F1Score()])

    def one_hot(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tiny.train_input(context).map(lambda points, kind: (points, tf.one_hot(kind, 3)))

    callbacks = job.callbacks(str(tmp_path))
    validation = job.eval_dataset(one_hot)
    model.fit(job.dataset(one_hot), validation_data=validation, callbacks=callbacks, verbose=0)

    (line,) = OutputDirectory(tmp_path).metrics.read_text().splitlines()
    assert len(json.loads(line)["f1_score"]) == 3
    for run in ("train", "validation"):
        tags = {
            value.tag
            for path in (tmp_path / "logs" / run).iterdir()
            for event in tf.compat.v1.train.summary_iterator(str(path))
            for value in event.summary.value
        }
        assert {"epoch_loss", *(f"epoch_f1_score/{index}" for index in range(3))} <= tags


@pytest.mark.parametrize("stops", [False, True])
def test_a_loss_that_is_not_finite_is_one_line(
    stops: bool, tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, model = tiny.job(), tiny.model()
    model.compile(tf.keras.optimizers.SGD(float("nan")), model.loss)
    own = [tf.keras.callbacks.TerminateOnNaN()] if stops else []
    model.fit(
        job.dataset(tiny.train_input),
        epochs=2,
        callbacks=[*job.callbacks(str(tmp_path)), *own],
        verbose=0,
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    warning = (
        "tfdist: warning: loss is nan after epoch 1; the callback TerminateOnNaN ends a training "
        "whose loss is NaN or infinite"
    )
    assert lines == ([] if stops else [warning])
