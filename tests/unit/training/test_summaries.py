"""What the training writes for TensorBoard, read with TensorBoard's own code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.graph.keras_util import keras_model_to_graph_def

from tests.conftest import TinyTraining
from tfdist.strategies.cursor import EpochCursor
from tfdist.training import summaries
from tfdist.training.records.tensorboard import TensorBoardRun
from tfdist.training.summaries import Summaries

pytestmark = pytest.mark.stacks("2.15", "newest")


def read(directory: Path) -> EventAccumulator:
    found = EventAccumulator(str(directory))
    found.Reload()
    return found


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and values by tag."""
    found = read(directory)
    return {
        tag: [(each.step, float(tf.make_ndarray(each.tensor_proto))) for each in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
        if found.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


def text(run: EventAccumulator, tag: str) -> str:
    (event,) = run.Tensors(tag)
    return str(tf.make_ndarray(event.tensor_proto).item().decode())


def by_epoch(values: list[float]) -> list[tuple[int, Any]]:
    return [(epoch, pytest.approx(value)) for epoch, value in enumerate(values, 1)]


class Reader(tf.keras.callbacks.Callback):
    """Reads the logs while the training goes on, as TensorBoard in another process would."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs = logs
        self.seen: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(len(scalars(self._logs / "train").get("epoch_loss", [])))


def test_a_run_has_the_metrics_of_each_epoch(tiny: TinyTraining, tmp_path: Path) -> None:
    job, reader = tiny.job(), Reader(tmp_path / "logs")
    history = tiny.model().fit(
        job.dataset(tiny.train_input),
        validation_data=job.eval_dataset(tiny.eval_input),
        epochs=3,
        callbacks=[reader, *job.callbacks(str(tmp_path))],
        verbose=0,
    )
    assert reader.seen == [0, 1, 2]
    train, validation = (scalars(tmp_path / "logs" / name) for name in ("train", "validation"))
    for tag, name in (("epoch_loss", "loss"), ("epoch_accuracy", "accuracy")):
        assert train[tag] == by_epoch(history.history[name])
        assert validation[tag] == by_epoch(history.history[f"val_{name}"])
    assert len(train["epoch_examples_per_second"]) == 3
    assert train["epoch_learning_rate"] == by_epoch([0.1] * 3)
    assert len(list((tmp_path / "logs" / "train").iterdir())) == 1, "TensorBoard follows one file"


def test_a_schedule_has_the_learning_rate_of_the_epochs_end(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    job, model = tiny.job(), tiny.model()
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([tiny.steps], [0.5, 0.25])
    model.compile(tf.keras.optimizers.SGD(schedule), "sparse_categorical_crossentropy")
    callbacks = job.callbacks(str(tmp_path))
    model.fit(job.dataset(tiny.train_input), epochs=2, callbacks=callbacks, verbose=0)
    assert scalars(tmp_path / "logs" / "train")["epoch_learning_rate"] == by_epoch([0.5, 0.25])


def test_the_job_is_a_text_and_the_model_a_graph(tiny: TinyTraining, tmp_path: Path) -> None:
    job, model = tiny.job(), tiny.model()
    callbacks = job.callbacks(str(tmp_path))
    model.fit(job.dataset(tiny.train_input), epochs=1, callbacks=callbacks, verbose=0)
    run = read(tmp_path / "logs" / "train")
    table = text(run, "job")
    assert "| strategy | one_device |" in table
    assert f"tensorflow {tf.__version__}" in table
    description = json.loads(text(run, "keras"))
    layers = {node.name.rpartition("/")[2] for node in keras_model_to_graph_def(description).node}
    assert {layer.name for layer in model.layers} <= layers
    event = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (event["strategy"], event["tasks"], event["flags"]) == ("one_device", {}, {})
    assert event["command"]
    assert event["batch_size"] == tiny.batch_size


def test_long_epochs_have_values_within_them(
    tiny: TinyTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny.job()
    seconds = iter(range(0, 10_000, 6))
    callbacks = job.callbacks(str(tmp_path))
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(summaries, "time", clock)
    tiny.model().fit(job.dataset(tiny.train_input), epochs=1, callbacks=callbacks, verbose=0)
    train = scalars(tmp_path / "logs" / "train")
    # With each step, 6 seconds pass on the clock, and a write is due after 10.
    assert [step for step, _ in train["step_loss"]] == [1, 3]
    # The first step begins after a look.
    assert train["step_seconds_per_step"] == [(1, 12.0), (3, 6.0)]
    rates = [pytest.approx(tiny.batch_size / seconds) for seconds in (12, 6)]
    assert [rate for _, rate in train["step_examples_per_second"]] == rates
    assert set(train) >= {"step_loss", "step_accuracy", "step_learning_rate"}


def test_the_steps_of_a_coordinator_are_not_seen(
    tiny: TinyTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras passes logs to it that are computed when they are fetched."""
    monkeypatch.setattr(EpochCursor, "sees_steps", False)
    callbacks = tiny.job().callbacks(str(tmp_path))
    (own,) = (each for each in callbacks if isinstance(each, Summaries))
    assert type(own).on_train_batch_end is tf.keras.callbacks.Callback.on_train_batch_end


def test_a_model_that_keras_cannot_describe_has_no_graph(tmp_path: Path) -> None:
    class Model(tf.keras.Model):
        def to_json(self, **options: Any) -> str:
            raise NotImplementedError

    run = TensorBoardRun(tmp_path / "run")
    run.graph(Model())
    run.scalars({}, 3)
    assert not (tmp_path / "run").exists()
    run.text("job", {"a|b": "c|d\ne"})
    run.close()
    assert text(read(tmp_path / "run"), "job").splitlines()[-1] == r"| a\|b | c\|d<br>e |"
