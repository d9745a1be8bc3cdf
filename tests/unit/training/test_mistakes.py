"""Mistakes in the arguments of `job.fit`: one usage error before the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def uncompiled() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("build", "received"),
    [(lambda: None, "'NoneType'"), (uncompiled, "which is not compiled")],
    ids=["nothing", "uncompiled"],
)
def test_build_model_must_return_a_compiled_model(
    build: Any, received: str, tiny: TinyTraining, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"build_model: received .*{received}"):
        tiny.job().fit(build, tiny.train_input, epochs=1, output_dir=str(tmp_path))


def test_build_model_must_be_a_function(tiny: TinyTraining, tmp_path: Path) -> None:
    built: Any = uncompiled()
    with pytest.raises(UsageError, match=r"build_model: received 'the model .*in a function"):
        tiny.job().fit(built, tiny.train_input, epochs=1, output_dir=str(tmp_path))


def test_output_dir_is_required(tiny: TinyTraining) -> None:
    with pytest.raises(UsageError, match="output_dir: received None"):
        tiny.job().fit(tiny.model, tiny.train_input, epochs=1)


def test_data_without_an_end_needs_a_number_of_steps(tiny: TinyTraining, tmp_path: Path) -> None:
    def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tiny.train_input(context).repeat()

    job = tiny.job()
    options: dict[str, Any] = {"epochs": 1, "output_dir": str(tmp_path), "verbose": 0}
    with pytest.raises(UsageError, match="steps_per_epoch: received None"):
        job.fit(tiny.model, endless, **options)
    assert job.fit(tiny.model, endless, steps_per_epoch=2, **options).params["steps"] == 2


def test_an_epoch_has_at_most_the_steps_of_its_data(tiny: TinyTraining, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 2, "output_dir": str(tmp_path), "verbose": 0}
    with pytest.raises(UsageError, match="steps_per_epoch: received '6, for 2 epochs of data with"):
        tiny.job().fit(tiny.model, tiny.train_input, steps_per_epoch=tiny.steps + 1, **options)
    tiny.job().fit(tiny.model, tiny.train_input, steps_per_epoch=tiny.steps, **options)


def test_a_dataset_has_its_own_batch_size(tiny: TinyTraining, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "output_dir": str(tmp_path), "batch_size": 8}
    with pytest.raises(UsageError, match="batch_size: received 8; accepted: none, because a"):
        tiny.job().fit(tiny.model, tiny.train_input, **options)
    job = tiny.job()
    assert job.fit(tiny.model, (tiny.points, tiny.classes), **options).params["steps"] == 3


def test_the_chief_says_that_a_task_has_no_data(
    tiny: TinyTraining, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tiny.job()._state
    monkeypatch.setattr(state.strategy, "gather", lambda own: [own, 1, 1])
    state.dataset(tiny.train_input)
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr(state.strategy, "gather", lambda own: [own, 1, 0])
    state.dataset(tiny.train_input)
    assert "1 of 3 tasks have no batch of the training data" in capsys.readouterr().err


def test_parameter_servers_need_the_steps_of_all_epochs(tiny: TinyTraining) -> None:
    state = tiny.job()._state
    state.dataset(tiny.train_input)
    assert state.data is not None
    state.data.check_length(tiny.steps, epochs=2)
    data = replace(state.data, workers=state.strategy.topology)
    data.check_length(None, epochs=2)
    data.check_length(3, epochs=2)
    with pytest.raises(UsageError, match="steps_per_epoch: received '5, for 2 epochs of data"):
        data.check_length(tiny.steps, epochs=2)


def test_examples_that_are_not_in_batches_are_refused(tiny: TinyTraining) -> None:
    def examples() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((tiny.points, tiny.classes))

    with pytest.raises(UsageError, match="training data: received 'elements without a batch"):
        tiny.job().dataset(examples)


def test_main_may_be_called_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may call `main()` in place of `tfdist.run(main)`."""
    import tfdist
    from tfdist import entry

    called: list[Any] = []

    def run(main: Any) -> None:
        called.append(main)
        raise SystemExit

    monkeypatch.setattr(entry, "run", run)

    @tfdist.main
    def main(job: tfdist.Job) -> None:
        raise AssertionError("run parses the flags first")

    with pytest.raises(SystemExit):
        main()  # type: ignore[call-arg]
    assert called == [main]


def test_a_strategy_changes_an_optimizer_in_place(
    tiny: TinyTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny.job()
    monkeypatch.setattr(job._strategy, "wrap_optimizer", lambda optimizer: object())
    with pytest.raises(TypeError, match=r"OneDevice\.wrap_optimizer must return the optimizer"):
        job.wrap_optimizer(tf.keras.optimizers.SGD(0.1))
