"""The evaluator, with a fake training that advances while the evaluator sleeps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, file_size_limit, keras_is_3, tf_config
from tfdist.errors import OutputError, UsageError
from tfdist.storage.checkpointer import Checkpointer, Position, mark_done
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training import evaluator as evaluation

pytestmark = pytest.mark.stacks("2.15", "newest")


EVALUATOR = {"TF_CONFIG": tf_config("evaluator", 0, worker=["a:1", "b:1"])}


class Training:
    """Acts as the chief: writes checkpoints with different weights, and the completion marker."""

    def __init__(self, tiny: TinyTraining, path: Path, keep: int | None = None) -> None:
        self.output = OutputDirectory(path)
        self._tiny = tiny
        self._model = tiny.model()
        self._checkpointer = Checkpointer(
            self._model, self.output.checkpoints, writes=True, keep=keep
        )

    def save(self, *epochs: int) -> None:
        for epoch in epochs:
            self._model.layers[-1].kernel.assign(
                tf.random.stateless_normal((4, 3), seed=(epoch, 0))
            )
            self._checkpointer.save(Position(epoch), number=epoch)
            self._checkpointer.wait()

    def done(self, epochs: int = 0) -> None:
        mark_done(self.output, finished=epochs, epochs=epochs)

    def expected(self, epoch: int) -> dict[str, float]:
        """The metrics with the weights of an epoch."""
        model = self._tiny.model()
        model.layers[-1].kernel.assign(tf.random.stateless_normal((4, 3), seed=(epoch, 0)))
        logs: dict[str, float] = model.evaluate(
            self._tiny.eval_input(tf.distribute.InputContext()), return_dict=True, verbose=0
        )
        return logs

    def expected_lines(self, *epochs: int) -> list[dict[str, float]]:
        return [{"epoch": epoch, **self.expected(epoch)} for epoch in epochs]

    def lines(self) -> list[dict[str, Any]]:
        found = list(map(json.loads, self.output.eval_metrics.read_text().splitlines()))
        times = [line.pop("time") for line in found]
        assert times == sorted(times)
        return found


def follow(
    tiny: TinyTraining,
    training: Training,
    *while_it_sleeps: Callable[[], None],
    clock: Callable[[], float] = lambda: 0.0,
    epochs: int | None = None,
) -> dict[str, float]:
    """Runs the evaluator; each time it sleeps, the training performs the next action."""
    actions = iter(while_it_sleeps)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        next(actions)()

    logs = evaluation.follow(
        tiny.job(EVALUATOR)._state,
        tiny.model(seed=9),
        tiny.eval_input,
        str(training.output.path),
        epochs=epochs,
        clock=clock,
        sleep=sleep,
    )
    assert len(slept) == len(while_it_sleeps)
    assert set(slept) <= {1.0}
    return logs


@pytest.fixture
def training(tiny: TinyTraining, tmp_path: Path) -> Training:
    return Training(tiny, tmp_path / "output")


def test_every_checkpoint_is_evaluated_until_the_completion_marker(
    tiny: TinyTraining, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    def last() -> None:
        training.save(4)
        training.done()

    logs = follow(
        tiny, training, lambda: None, lambda: training.save(1), lambda: training.save(2, 3), last
    )

    assert training.lines() == training.expected_lines(1, 2, 3, 4)
    assert len({line["loss"] for line in training.lines()}) == 4
    assert logs == training.expected(4)
    printed = capsys.readouterr()
    names = ["accuracy", "loss"] if keras_is_3() else ["loss", "accuracy"]
    assert printed.out.splitlines() == [
        f"epoch {line['epoch']}: " + ", ".join(f"{name} {line[name]:.4f}" for name in names)
        for line in training.lines()
    ]
    assert f"evaluating the checkpoints in {training.output.checkpoints}\n" in printed.err


def test_tensorboard_logs_each_metric_at_its_epoch(tiny: TinyTraining, training: Training) -> None:
    training.save(1, 3)
    follow(tiny, training, training.done)

    written = {
        (event.step, value.tag, round(float(tf.make_ndarray(value.tensor)), 5))
        for path in (training.output.logs / "eval").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert written == {
        (line["epoch"], f"epoch_{name}", round(line[name], 5))
        for line in training.lines()
        for name in ("loss", "accuracy")
    }


def test_the_completion_marker_of_an_earlier_run_is_ignored_until_renewed(
    tiny: TinyTraining, training: Training
) -> None:
    training.save(1)
    training.done()

    logs = follow(
        tiny,
        training,
        lambda: None,
        training.output.done.unlink,
        lambda: training.save(2),
        training.done,
    )

    assert training.lines() == training.expected_lines(1, 2)
    assert logs == training.expected(2)


def test_an_unchanged_completion_marker_ends_the_evaluation_after_a_minute(
    tiny: TinyTraining, training: Training
) -> None:
    training.save(1)
    training.done()
    now = iter([100.0, 100.0, 160.0, 160.5])

    logs = follow(tiny, training, lambda: None, lambda: None, clock=now.__next__)

    assert logs == training.expected(1)
    assert next(now, None) is None


def test_a_minute_without_a_completion_marker_does_not_end_the_evaluation(
    tiny: TinyTraining, training: Training
) -> None:
    now = iter(range(0, 10_000, 100))

    follow(
        tiny,
        training,
        lambda: None,
        lambda: training.save(1),
        training.done,
        clock=lambda: float(next(now)),
    )

    assert training.lines() == training.expected_lines(1)


def test_a_repeated_evaluation_keeps_one_line_per_epoch(tiny: TinyTraining, tmp_path: Path) -> None:
    training = Training(tiny, tmp_path, keep=2)
    training.save(1, 2)
    follow(tiny, training, lambda: training.save(3), training.done)
    assert training.lines() == training.expected_lines(1, 2, 3)
    training.output.done.unlink()

    # Checkpoints 2 and 3 still exist, so the next evaluator process evaluates them again.
    follow(tiny, training, lambda: training.save(4), training.done)

    assert training.lines() == training.expected_lines(1, 2, 3, 4)


def test_a_checkpoint_that_is_removed_in_the_meantime_is_skipped(
    tiny: TinyTraining, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.save(1, 2)
    for path in training.output.checkpoints.glob("ckpt-1.*"):
        path.unlink()

    follow(tiny, training, training.done)

    assert training.lines() == training.expected_lines(2)
    assert "ckpt-1" not in caplog.text


def test_a_checkpoint_that_is_removed_before_it_is_restored_is_no_warning(
    tiny: TinyTraining,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    restore = Checkpointer.restore

    def remove_and_restore(self: Checkpointer, path: str) -> int:
        for file in training.output.checkpoints.glob("ckpt-1.*"):
            file.unlink()
        return restore(self, path)

    training.save(1, 2)
    monkeypatch.setattr(Checkpointer, "restore", remove_and_restore)
    follow(tiny, training, training.done)

    assert training.lines() == training.expected_lines(2)
    assert "ckpt-1" not in caplog.text + capfd.readouterr().err


def test_a_training_without_a_checkpoint_has_no_metrics(
    tiny: TinyTraining, training: Training
) -> None:
    assert follow(tiny, training, training.done) == {}
    assert not training.output.eval_metrics.exists()


def test_the_evaluator_writes_only_its_own_files(
    tiny: TinyTraining, training: Training, temporary_files: Callable[[], list[str]]
) -> None:
    training.save(1)
    before = sorted(training.output.checkpoints.iterdir())

    follow(tiny, training, training.done)

    assert sorted(training.output.checkpoints.iterdir()) == before
    assert sorted(path.name for path in training.output.path.iterdir()) == [
        "checkpoints",
        "done.json",
        "eval_lock.json",
        "eval_metrics.jsonl",
        "logs",
    ]
    assert temporary_files() == []


def test_an_evaluator_needs_the_output_directory(tiny: TinyTraining) -> None:
    with pytest.raises(UsageError, match="output_dir: received None"):
        tiny.job(EVALUATOR).evaluate(tiny.model(), tiny.eval_input)


def test_the_completion_marker_of_a_shorter_run_never_ends_the_evaluation(
    tiny: TinyTraining, training: Training
) -> None:
    training.save(1)
    training.done(epochs=1)
    now = iter(range(0, 10_000, 1000))

    logs = follow(
        tiny,
        training,
        lambda: None,
        lambda: None,
        training.output.done.unlink,
        lambda: training.save(2),
        lambda: training.done(epochs=2),
        clock=lambda: float(next(now)),
        epochs=2,
    )

    assert logs == training.expected(2)


def test_the_completion_marker_of_a_long_enough_run_ends_the_evaluation_immediately(
    tiny: TinyTraining, training: Training
) -> None:
    training.save(1, 2)
    training.done(epochs=2)

    assert follow(tiny, training, epochs=2) == training.expected(2)


def test_a_completion_marker_with_a_damaged_checkpoint_does_not_end_the_evaluation(
    tiny: TinyTraining, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.save(1, 2)
    training.done(epochs=2)
    damaged = training.output.checkpoints / "ckpt-2"
    os.truncate(f"{damaged}.data-00000-of-00001", 100)

    def again() -> None:
        training.save(2)
        training.done(epochs=2)

    logs = follow(tiny, training, lambda: None, lambda: None, again, epochs=2)

    assert logs == training.expected(2)
    assert training.lines() == training.expected_lines(1, 2)
    assert [line for line in caplog.messages if "is skipped" in line] == [
        f"{damaged} cannot be read (Read less bytes than requested) and is skipped"
    ]


def test_a_failed_write_of_the_results_is_an_error(tiny: TinyTraining, training: Training) -> None:
    training.save(1)
    with pytest.raises(UsageError, match="output_dir: received"):
        (training.output.path / "logs").touch()
        follow(tiny, training)
    (training.output.path / "logs").unlink()

    training.output.eval_metrics.write_text('{"epoch": 0}\n' * 10_000)
    with file_size_limit(100_000), pytest.raises(OutputError, match="could not be written: File"):
        follow(tiny, training, training.done)
