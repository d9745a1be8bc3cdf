"""Output directories whose paths TensorFlow interprets as patterns are rejected."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, tf_config
from tfdist.errors import UsageError
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.15", "newest")


def is_accepted(path: Path) -> bool:
    try:
        OutputDirectory(path)
    except UsageError:
        return False
    return True


def files(directory: Path) -> dict[Path, float]:
    """All files below a directory, and when each was last changed."""
    return {path: path.stat().st_mtime for path in directory.rglob("*")}


def test_the_characters_are_those_that_tensorflow_interprets(tmp_path: Path) -> None:
    characters = sorted({*string.printable, "é", "漢"} - {"/"})
    paths = [tmp_path / f"run{character}1]" for character in characters]
    for path in paths:
        path.mkdir()

    interpreted = [path for path in paths if tf.io.gfile.glob(str(path)) != [str(path)]]
    assert interpreted == [path for path in paths if not is_accepted(path)]
    assert len(interpreted) == 4


@pytest.mark.parametrize("name", ["run[12]", "run*", "run?", "run\\1", "run[12]/below"])
def test_a_training_beside_others_is_rejected_before_it_changes_anything(
    name: str, tiny: TinyTraining, tmp_path: Path
) -> None:
    for neighbor in ("run1", "run2", "run1/below"):
        for file in ("ckpt-5.index", "ckpt-5.data-00000-of-00001"):
            path = tmp_path / neighbor / "checkpoints" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("from another job\n")
    before = files(tmp_path)

    job = tiny.job()
    with pytest.raises(UsageError) as error:
        tiny.model().fit(
            job.dataset(tiny.train_input),
            epochs=2,
            callbacks=job.callbacks(str(tmp_path / name), keep=1),
            verbose=0,
        )

    assert (error.value.field, error.value.received) == ("output_dir", str(tmp_path / name))
    assert "characters * ? [ \\, which TensorFlow interprets" in str(error.value)
    assert files(tmp_path) == before


def test_an_evaluator_rejects_the_same_directories(tiny: TinyTraining, tmp_path: Path) -> None:
    job = tiny.job({"TF_CONFIG": tf_config("evaluator", 0, worker=["a:1", "b:1"])})

    with pytest.raises(UsageError, match="output_dir: received"):
        job.evaluate(tiny.model(), tiny.eval_input, str(tmp_path / "run[12]"))

    assert os.listdir(tmp_path) == []


def test_the_path_of_the_working_directory_may_contain_them(
    tiny: TinyTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow gets a relative path as it is."""
    for name in ("all[12]", "all1"):
        (tmp_path / name).mkdir()
    neighbor = tmp_path / "all1" / "run" / "checkpoints" / "ckpt-5.index"
    neighbor.parent.mkdir(parents=True)
    neighbor.write_text("from another job\n")
    monkeypatch.chdir(tmp_path / "all[12]")

    for epochs in (2, 3):
        job = tiny.job()
        tiny.model().fit(
            job.dataset(tiny.train_input),
            epochs=epochs,
            callbacks=job.callbacks("run", keep=1),
            verbose=0,
        )

    assert [path.name for path in Path("run/checkpoints").glob("*.index")] == ["ckpt-15.index"]
    assert neighbor.exists()
