"""Keras 3's own checkpoint callbacks in a directory that all tasks share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.21", horovod=("newest",)), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "keras3_callbacks_program.py")


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_the_chief_saves_and_all_tasks_restore(tmp_path: Path, strategy: str) -> None:
    command = [f"--strategy={strategy}", "--workers=2", PROGRAM, f"--shared_dir={tmp_path}"]
    failed = launch(tmp_path / "failed", *command, "--fail_in_epoch=2", deadline=90)
    assert failed.code == 1
    assert "as requested" in failed.output
    saved = tf.keras.models.load_model(tmp_path / "model.keras", compile=False).get_weights()

    ended = launch(tmp_path / "ended", *command, deadline=90)

    assert ended.code == 0, ended.output
    one, other = (dict(np.load(path)) for path in sorted(tmp_path.glob("worker-*.npz")))
    np.testing.assert_array_equal(one["epochs"], [3, 4])
    np.testing.assert_array_equal(one["first_weights"], np.concatenate([w.ravel() for w in saved]))
    for key in ("epochs", "first_weights", "weights", "steps"):
        np.testing.assert_array_equal(one[key], other[key])
    assert one["steps"] == 4 * 3, "the optimizer should also have been restored"
    model = tf.keras.models.load_model(tmp_path / "model.keras", compile=False)
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    np.testing.assert_array_equal(weights, one["weights"])
    assert {path.name for path in tmp_path.glob("*.h5")} == {
        f"{epoch}.weights.h5" for epoch in range(1, 5)
    }
    assert (tmp_path / "model-0.keras").exists()
    assert not (tmp_path / "model-1.keras").exists(), "only the chief should save"
    assert not (tmp_path / "backup").exists(), "the training is complete"
