"""Checkpoints, the exported model and the completion marker are written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, file_size_limit
from tfdist.checkpoints import checkpointer as checkpoints
from tfdist.checkpoints import export
from tfdist.checkpoints import files as checkpoint_files
from tfdist.checkpoints.checkpointer import Checkpointer, Position
from tfdist.checkpoints.output_directory import OutputDirectory
from tfdist.compat import building
from tfdist.compat import keras as keras_compat
from tfdist.errors import OutputError

pytestmark = pytest.mark.stacks("2.15")


def state(model: tf.keras.Model) -> list[np.ndarray]:
    """The weights, and the optimizer's steps and slots."""
    return [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def trained(tiny: TinyTraining, seed: int = 1) -> tf.keras.Model:
    model = tiny.model(seed)
    model.fit(tiny.train_input(tf.distribute.InputContext()), epochs=1, verbose=0)
    return model


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
    ],
)
def test_positions_of_older_checkpoints_are_read(saved: str, position: Position) -> None:
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


def test_the_exported_model_gives_the_same_predictions(tiny: TinyTraining, tmp_path: Path) -> None:
    model = trained(tiny)
    expected = model(tiny.points).numpy()
    assert np.ptp(expected) > 0.1

    export.export(model, OutputDirectory(tmp_path), writes=True)

    assert os.listdir(tmp_path) == ["saved_model"]
    loaded = tf.keras.models.load_model(tmp_path / "saved_model")
    np.testing.assert_allclose(loaded.predict(tiny.points, verbose=0), expected, rtol=1e-5)
    served_model = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served_model(tf.constant(tiny.points)), expected, rtol=1e-5)
    (served,) = served_model.signatures["serving_default"](tf.constant(tiny.points)).values()
    np.testing.assert_allclose(served.numpy(), expected, rtol=1e-5)


def of_two_numbers() -> tf.keras.Model:
    inputs = {name: tf.keras.Input([2], name=name) for name in ("right", "left")}
    joined = tf.keras.layers.Concatenate()([inputs["left"], inputs["right"]])
    outputs = {name: tf.keras.layers.Dense(1, name=name)(joined) for name in ("sum", "product")}
    return tf.keras.Model(inputs, outputs)


def of_words() -> tf.keras.Model:
    inputs = tf.keras.Input([1], dtype=tf.string)
    words = tf.keras.layers.StringLookup()
    words.adapt(["mon", "tue"])
    return tf.keras.Model(inputs, tf.keras.layers.Embedding(3, 2)(words(inputs)))


class Doubled(tf.keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


def with_a_layer_of_its_own() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2), Doubled()])


NUMBERS = np.arange(6, dtype="float32").reshape(3, 2)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (of_two_numbers, {"left": NUMBERS, "right": NUMBERS + 1}),
        (of_words, np.array([["tue"], ["sun"], ["mon"]])),
        (with_a_layer_of_its_own, NUMBERS),
    ],
)
def test_an_export_is_served_called_and_loaded_as_that_of_keras(
    tmp_path: Path, make: Callable[[], tf.keras.Model], inputs: Any
) -> None:
    model, tensors = make(), tf.nest.map_structure(tf.constant, inputs)
    expected = model.predict(inputs, verbose=0)
    export.export(model, OutputDirectory(tmp_path), writes=True)
    model.save(tmp_path / "by_keras", include_optimizer=False)

    def signature(path: Path) -> Any:
        return tf.saved_model.load(str(path)).signatures["serving_default"]

    own, by_keras = signature(tmp_path / "saved_model"), signature(tmp_path / "by_keras")
    assert own.structured_input_signature == by_keras.structured_input_signature
    assert own.structured_outputs == by_keras.structured_outputs
    called = tf.saved_model.load(str(tmp_path / "saved_model"))(tensors)
    loaded = tf.keras.models.load_model(tmp_path / "saved_model")
    for found in (called, loaded.predict(inputs, verbose=0)):
        tf.nest.map_structure(np.testing.assert_allclose, found, expected)


def test_exporting_a_model_before_its_first_step_keeps_its_metrics_correct(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = tiny.model()

    export.export(model, OutputDirectory(tmp_path), writes=True)

    results = model.evaluate(
        tiny.eval_input(tf.distribute.InputContext()), return_dict=True, verbose=0
    )
    correct = model(tiny.points).numpy().argmax(axis=1) == tiny.classes
    assert 0 < correct.mean() < 1
    assert results["accuracy"] == pytest.approx(correct.mean())


class WatchedLayer(tf.keras.layers.Layer):
    """Calls `hook` while its model is being saved."""

    hook: Callable[[], None] = staticmethod(lambda: None)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs

    def get_config(self) -> dict[str, Any]:
        self.hook()
        return super().get_config()


def test_a_function_of_a_layer_is_exported(tmp_path: Path) -> None:
    inputs = tf.keras.Input([4])
    layer = tf.keras.layers.Dense(3)
    layer.halved = tf.function(lambda x: x / 2, input_signature=[tf.TensorSpec([])])

    export.export(tf.keras.Model(inputs, layer(inputs)), OutputDirectory(tmp_path), writes=True)

    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    assert float(getattr(loaded, "layer_with_weights-0").halved(3.0)) == 1.5


def test_a_model_with_ragged_inputs_can_be_served(tmp_path: Path) -> None:
    inputs = tf.keras.Input([None], ragged=True, dtype=tf.int64)
    model = tf.keras.Model(inputs, tf.keras.layers.Embedding(3, 2)(inputs.to_tensor()))
    rows = tf.ragged.constant([[1], [2, 0]], tf.int64)

    export.export(model, OutputDirectory(tmp_path), writes=True)

    served = tf.saved_model.load(str(tmp_path / "saved_model"))(rows)
    np.testing.assert_allclose(served, model(rows))


def test_the_old_model_stays_intact_until_it_is_replaced(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    output = OutputDirectory(tmp_path)
    export.export(trained(tiny), output, writes=True)
    before = files(output.saved_model)
    seen: list[bool] = []
    layer = WatchedLayer()
    layer.hook = lambda: seen.append(files(output.saved_model) == before)
    model = tiny.model(seed=2, layers=(layer,))

    export.export(model, output, writes=True)

    assert seen
    assert all(seen)
    assert os.listdir(tmp_path) == ["saved_model"]
    served = tf.saved_model.load(str(output.saved_model))(tf.constant(tiny.points))
    np.testing.assert_allclose(served.numpy(), model(tiny.points).numpy(), rtol=1e-5)


def test_a_failed_export_keeps_only_the_old_model(tiny: TinyTraining, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    export.export(trained(tiny), output, writes=True)
    before = files(tmp_path)

    def fail() -> None:
        raise RuntimeError("the disk is full")

    layer = WatchedLayer()
    layer.hook = fail

    with pytest.raises(RuntimeError, match="the disk is full"):
        export.export(tiny.model(layers=(layer,)), output, writes=True)

    assert files(tmp_path) == before
    assert os.listdir(tmp_path) == ["saved_model"]


def test_a_task_that_does_not_write_exports_nothing(
    tiny: TinyTraining, tmp_path: Path, temporary_files: Callable[[], list[str]]
) -> None:
    export.export(trained(tiny), OutputDirectory(tmp_path / "output"), writes=False)

    assert not (tmp_path / "output").exists()
    assert temporary_files() == []


@pytest.mark.parametrize(
    ("aggregation", "has_metric", "is_needed"),
    [
        (tf.VariableAggregation.MEAN, False, False),
        (tf.VariableAggregation.SUM, False, True),
        (tf.VariableAggregation.MEAN, True, True),
    ],
)
def test_a_task_that_does_not_write_participates_if_needed(
    tiny: TinyTraining,
    tmp_path: Path,
    aggregation: tf.VariableAggregation,
    has_metric: bool,
    is_needed: bool,
) -> None:
    saved: list[bool] = []

    class Counts(WatchedLayer):
        def build(self, input_shape: Any) -> None:
            on_read = tf.VariableSynchronization.ON_READ
            self.add_weight(
                "count", [], trainable=False, synchronization=on_read, aggregation=aggregation
            )
            if has_metric:
                self.mean = tf.keras.metrics.Mean()
            self.hook = lambda: saved.append(True)

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny.model(layers=(Counts(),))
    saved.clear()
    export.export(model, OutputDirectory(tmp_path), writes=False)

    assert bool(saved) == is_needed
    assert os.listdir(tmp_path) == []


def test_an_export_to_a_full_disk_keeps_only_the_old_model(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    output = OutputDirectory(tmp_path)
    export.export(tiny.model(), output, writes=True)
    before = files(tmp_path)

    with file_size_limit(1000), pytest.raises(OutputError, match="saved_model could not be writt"):
        export.export(tiny.model(seed=2), output, writes=True)

    assert files(tmp_path) == before
    assert os.listdir(tmp_path) == ["saved_model"]


@pytest.mark.parametrize("text", ["", '{"finished": 3, "epo', "[]", "{}"])
def test_a_damaged_marker_is_none(text: str, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.done.write_text(text)

    assert checkpoints.read_marker(output) is None
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
