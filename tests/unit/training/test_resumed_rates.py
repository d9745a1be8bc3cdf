"""The learning rate of a resumed training: of the checkpoint or of the changed script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, keras_is_3
from tfdist.compat.keras import hyperparameters
from tfdist.data.position import Position
from tfdist.training.resumed_hyperparameters import settle

pytestmark = pytest.mark.stacks("2.15", "newest")

TOLD = "learning_rate is now {} in the script, and {} in the checkpoint: that of the {} is used"


class Runs:
    """Starts of one script, each of which trains one epoch more."""

    def __init__(self, tiny: TinyTraining, output: Path, capsys: Any) -> None:
        self._tiny, self._output, self._capsys = tiny, output, capsys
        self._epochs = 0

    def run(
        self, optimizer: Any, *, resumes_with: str = "checkpoint", reduced: float | None = None
    ) -> tuple[dict[str, float], str]:
        """Returns the hyperparameters after the training, and what was told of them.

        A callback sets the learning rate to `reduced` before the checkpoint is saved.
        """
        job, model = self._tiny.job(), self._tiny.model()
        state = job._state
        flags = replace(state.role.flags, resume_hyperparameters=resumes_with)
        state.role = replace(state.role, flags=flags)
        model.compile(optimizer, model.loss)
        callbacks = job.callbacks(str(self._output))
        if reduced is not None:
            schedule = tf.keras.callbacks.LearningRateScheduler(lambda *_: reduced)
            callbacks.append(schedule)
        self._epochs += 1
        data = job.dataset(self._tiny.train_input)
        model.fit(data, epochs=self._epochs, callbacks=callbacks, verbose=0)
        lines = self._capsys.readouterr().err.splitlines()
        found = {name: round(float(each), 6) for name, each in hyperparameters(model).items()}
        return found, "".join(line for line in lines if "in the script" in line)


@pytest.fixture
def runs(tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tiny, tmp_path, capsys)


def test_only_a_change_of_the_script_is_told_and_the_flag_decides(runs: Runs) -> None:
    sgd = tf.keras.optimizers.SGD
    assert runs.run(sgd(0.1), reduced=0.05) == ({"learning_rate": 0.05}, "")
    # A restart: the callback's rate stays.
    assert runs.run(sgd(0.1)) == ({"learning_rate": 0.05}, "")
    for _ in range(2):  # Until the flag is set.
        found, told = runs.run(sgd(0.01))
        assert found == {"learning_rate": 0.05}
        assert TOLD.format(0.01, 0.05, "checkpoint") in told
    found, told = runs.run(sgd(0.01), resumes_with="script", reduced=0.005)
    assert TOLD.format(0.01, 0.05, "script") in told
    # A restart with the same flag does not undo what the callback did in the meantime.
    assert runs.run(sgd(0.01), resumes_with="script") == ({"learning_rate": 0.005}, "")


def test_the_rate_of_the_script_is_trained_with(runs: Runs) -> None:
    runs.run(tf.keras.optimizers.SGD(0.1))
    found, _ = runs.run(tf.keras.optimizers.SGD(0.01), resumes_with="script")
    assert found == {"learning_rate": 0.01}


class Halved(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a configuration."""

    def __call__(self, step: Any) -> Any:
        return 0.5 / (1.0 + tf.cast(step, tf.float32))


@pytest.mark.parametrize("schedule", [Halved(), tf.keras.optimizers.schedules.CosineDecay(0.1, 9)])
def test_a_schedule_is_the_one_of_the_script(runs: Runs, schedule: Any) -> None:
    assert runs.run(tf.keras.optimizers.SGD(schedule)) == ({}, "")
    assert runs.run(tf.keras.optimizers.SGD(0.2)) == ({"learning_rate": 0.2}, "")
    assert runs.run(tf.keras.optimizers.SGD(schedule)) == ({}, "")


@pytest.mark.skipif(keras_is_3(), reason="Keras 3 has no legacy optimizers")
def test_a_legacy_optimizer_has_more_of_them(runs: Runs) -> None:
    sgd = tf.keras.optimizers.legacy.SGD
    runs.run(sgd(0.1, momentum=0.9))
    found, told = runs.run(sgd(0.1, momentum=0.5))
    assert found == {"learning_rate": 0.1, "decay": 0.0, "momentum": 0.9}
    assert "momentum is now 0.5 in the script, and 0.9 in the checkpoint" in told


def test_another_number_of_replicas_is_no_change_of_the_script(
    tiny: TinyTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is from four replicas, and a callback has halved the rate since."""
    job, model = tiny.job(), tiny.model()
    model.optimizer.learning_rate = 0.2
    script = {"learning_rate": job.scaled_lr(0.1)}
    position = Position(1, batches_per_update=4, hyperparameters={"learning_rate": 0.4})
    settle(job._state, hyperparameters(model), script, position)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)
    told = capsys.readouterr().err
    assert "from 4 batches per update; the learning rate is scaled to 0.05 for 1 batch" in told
    assert "in the script" not in told
