"""Checkpoints and the completion marker are written atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, file_size_limit
from tests.support.trained_models import assert_equal, files, state, trained
from tfdist.compat import building
from tfdist.compat import keras as keras_compat
from tfdist.errors import OutputError
from tfdist.storage import checkpointer as checkpoints
from tfdist.storage import files as checkpoint_files
from tfdist.storage.checkpointer import Checkpointer, Position
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.15")


def test_a_checkpoint_restores_weights_slots_steps_and_epoch(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = trained(tiny)
    saved = state(model)
    assert int(model.optimizer.iterations) == tiny.steps
    Checkpointer(model, tmp_path, writes=True).save(Position(3), number=3)

    fresh = tiny.model(seed=2)
    building.build_model(fresh, None)
    building.build_optimizers(fresh)
    assert len(state(fresh)) == len(saved)
    assert any(not np.array_equal(*pair) for pair in zip(state(fresh), saved, strict=True))

    assert Checkpointer(fresh, tmp_path, writes=True).restore() == 3
    assert_equal(state(fresh), saved)


def test_restoring_without_a_checkpoint_changes_nothing(tiny: TinyTraining, tmp_path: Path) -> None:
    model = trained(tiny)
    before = state(model)

    assert Checkpointer(model, tmp_path / "none", writes=True).restore() == 0
    assert_equal(state(model), before)


@pytest.mark.parametrize(
    ("saved", "position"),
    [
        ('{"epoch": 2}', Position(2)),
        ('{"epoch": 1, "steps": [3, 3], "replicas": 2}', Position(1, (3, 3), 2)),
        ('{"hyperparameters": {"decay": 0.1}}', Position(hyperparameters={"decay": 0.1})),
    ],
)
def test_positions_of_checkpoints_are_read(saved: str, position: Position) -> None:
    progress = checkpoints._Progress()
    progress.deserialize(saved.encode())
    assert progress.position == position


def test_a_task_that_does_not_write_restores_what_the_chief_wrote(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = trained(tiny)
    Checkpointer(model, tmp_path / "checkpoints", writes=True).save(Position(2), number=2)
    fresh = tiny.model(seed=2)
    building.build_model(fresh, None)
    building.build_optimizers(fresh)
    reader = Checkpointer(fresh, tmp_path / "checkpoints", writes=False)

    assert reader.restore() == 2
    assert_equal(state(fresh), state(model))


def test_only_the_newest_checkpoints_are_kept_even_after_a_restart(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = trained(tiny)
    for epochs in ((1, 2, 3), (4, 5)):
        checkpointer = Checkpointer(model, tmp_path, writes=True, keep=2)
        checkpointer.restore()
        for epoch in epochs:
            checkpointer.save(Position(epoch), number=epoch)
        checkpointer.wait()

    assert sorted(files(tmp_path)) == [
        "checkpoint",
        "ckpt-4.data-00000-of-00001",
        "ckpt-4.index",
        "ckpt-5.data-00000-of-00001",
        "ckpt-5.index",
    ]


def test_every_checkpoint_can_be_restored_by_its_path(tiny: TinyTraining, tmp_path: Path) -> None:
    model = tiny.model()
    checkpointer = Checkpointer(model, tmp_path, writes=True)
    for epoch in (1, 2):
        model.layers[-1].bias.assign([epoch] * 3)
        checkpointer.save(Position(epoch), number=epoch)

    assert checkpointer.restore(str(tmp_path / "ckpt-1")) == 1
    assert model.layers[-1].bias.numpy().tolist() == [1, 1, 1]
    assert checkpointer.restore() == 2
    assert model.layers[-1].bias.numpy().tolist() == [2, 2, 2]


def test_a_writing_task_skips_a_damaged_checkpoint_and_repairs_the_state(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = tiny.model()
    checkpointer = Checkpointer(model, tmp_path, writes=True)
    for epoch in (1, 2):
        model.layers[-1].bias.assign([epoch] * 3)
        checkpointer.save(Position(epoch), number=epoch)
    checkpointer.wait()
    (tmp_path / "ckpt-2.index").unlink()

    assert Checkpointer(model, tmp_path).restore() == 1
    assert [Path(path).name for path in checkpoint_files.saved(tmp_path)] == ["ckpt-1", "ckpt-2"]
    model.layers[-1].bias.assign([9] * 3)
    assert Checkpointer(model, tmp_path, writes=True).restore() == 1
    assert [Path(path).name for path in checkpoint_files.saved(tmp_path)] == ["ckpt-1"]
    assert model.layers[-1].bias.numpy().tolist() == [1, 1, 1]


def test_a_failed_save_keeps_only_the_previous_checkpoint(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    checkpointer = Checkpointer(tiny.model(), tmp_path, writes=True)
    checkpointer.save(Position(1), number=1)
    before = files(tmp_path)

    with file_size_limit(100):
        checkpointer.save(Position(2), number=2)
        with pytest.raises(OutputError, match="ckpt-2 could not be written: F"):
            checkpointer.wait()

    assert files(tmp_path) == before
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    checkpointer.save(Position(2), number=2)
    assert checkpointer.restore() == 2


def test_a_checkpoint_has_the_state_of_its_step(tiny: TinyTraining, tmp_path: Path) -> None:
    model = trained(tiny)
    table = model.layers[-1].kernel
    checkpointer = Checkpointer(model, tmp_path, writes=True)
    checkpointer.save(Position(1), number=1)
    saved = []
    for number in range(2, 30):
        saved.append(state(model))
        checkpointer.save(Position(number), number=number)
        # Dense and sparse updates, right after the state was read.
        for variable in keras_compat.as_tensorflow(model.trainable_variables):
            variable.assign_add(tf.ones_like(variable))
        tf.raw_ops.ResourceScatterAdd(
            resource=keras_compat.as_tensorflow([table])[0].handle,
            indices=[0],
            updates=tf.ones_like(table[:1]),
        )
    checkpointer.wait()
    for number, expected in enumerate(saved, start=2):
        assert checkpointer.restore(str(tmp_path / f"ckpt-{number}")) == number
        assert_equal(state(model), expected)


def test_a_variable_that_is_new_is_saved_too(tiny: TinyTraining, tmp_path: Path) -> None:
    model = trained(tiny)
    model.averages = []
    checkpointer = Checkpointer(model, tmp_path, writes=True)
    for number in (1, 2):
        checkpointer.save(Position(number), number=number)
    model.averages.append(tf.Variable(7.0))
    checkpointer.save(Position(3), number=3)
    model.averages[0].assign(8.0)
    checkpointer.save(Position(4), number=4)
    for number, value in ((3, 7.0), (4, 8.0)):
        checkpointer.restore(str(tmp_path / f"ckpt-{number}"))
        assert model.averages[0].numpy() == value


def test_the_state_of_a_table_is_saved_as_tensorflow_does(tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    checkpointer = Checkpointer(model, tmp_path, writes=True)
    for number in (1, 2):
        model.table.insert(tf.constant(["word"]), tf.constant([number], tf.int64))
        checkpointer.save(Position(number), number=number)
    for number in (1, 2):
        checkpointer.restore(str(tmp_path / f"ckpt-{number}"))
        assert model.table.lookup(tf.constant(["word"])).numpy().tolist() == [number]


@pytest.mark.parametrize("text", ["", '{"finished": 3, "epo', "[]", "{}"])
def test_a_damaged_marker_is_none(text: str, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.done.write_text(text)

    assert checkpoints.training_marker(output) is None
    assert not checkpoints.is_complete(output, finished=3, epochs=10)
    assert checkpoints.is_complete(output, finished=10, epochs=10)


def test_the_completion_marker_contains_the_requested_epochs(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "new")
    assert not checkpoints.is_complete(output, finished=3, epochs=10)

    checkpoints.mark_done(output, finished=3, epochs=10)
    first = output.done.read_text()
    record = json.loads(first)
    assert (record["finished"], record["epochs"]) == (3, 10)
    assert checkpoints.is_complete(output, finished=3, epochs=10)
    assert not checkpoints.is_complete(output, finished=3, epochs=11)
    assert not checkpoints.is_complete(output, finished=2, epochs=10), (
        "the marker belongs to another checkpoint"
    )

    checkpoints.mark_done(output, finished=3, epochs=10)
    assert output.done.read_text() != first
    assert os.listdir(output.path) == ["done.json"]
