"""What a training tells other processes of its progress: `tfdist run` and `tfdist status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.coordination.liveness.activity import BETWEEN_EPOCHS, TRAINING, State
from tfdist.storage.output_directory import OutputDirectory
from tfdist.strategies.cursor import EpochCursor
from tfdist.training.progress import Progress
from tfdist.training.steps import Steps

pytestmark = pytest.mark.stacks("2.15", "newest")


class Seen(tf.keras.callbacks.Callback):
    """The states after each step and each epoch."""

    def __init__(self, callback: Progress) -> None:
        super().__init__()
        self._activity = callback._activity
        self.steps: list[State] = []
        self.epochs: list[State] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(self._activity.state)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(self._activity.state)


def train(tiny: TinyTraining, output: Path, epochs: int) -> tuple[Seen, list[float]]:
    job = tiny.job()
    callbacks = job.callbacks(str(output))
    (own,) = (each for each in callbacks if isinstance(each, Progress))
    seen = Seen(own)
    history = tiny.model().fit(
        job.dataset(tiny.train_input), epochs=epochs, callbacks=[*callbacks, seen], verbose=0
    )
    return seen, history.history["loss"]


def test_a_training_tells_its_epochs_steps_and_losses(tiny: TinyTraining, tmp_path: Path) -> None:
    seen, losses = train(tiny, tmp_path, 2)
    assert {state.doing for state in seen.steps} == {TRAINING}
    assert all(state.doing == BETWEEN_EPOCHS for state in seen.epochs)
    # Without waiting for the watchdog, which looks once a second.
    assert [state.steps for state in seen.epochs] == [5, 10]
    assert [(state.epoch, state.epochs, state.goal) for state in seen.epochs] == [
        (1, 2, 10),
        (2, 2, 10),
    ]
    assert [state.loss for state in seen.epochs] == pytest.approx(losses)
    assert {state.examples_per_step for state in seen.epochs} == {tiny.batch_size}
    assert seen.epochs[0].resumed == 0

    resumed, _ = train(tiny, tmp_path, 3)
    (last,) = resumed.epochs
    assert (last.resumed, last.steps, last.goal) == (10, 5, 15)


def test_a_coordinator_tells_its_epochs_alone(
    tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = tiny.job()

    def acts_on_batches() -> bool:
        steps = Steps(job._state, [Progress(job._state, OutputDirectory(tmp_path))])
        return not getattr(steps.on_train_batch_end, "_is_default", False)

    assert acts_on_batches()
    monkeypatch.setattr(EpochCursor, "sees_steps", False)
    assert not acts_on_batches()
