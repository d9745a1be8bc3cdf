"""Every path that a user gives may begin with `~`, and is none of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TinyTraining, tensorflow_version, tf_config
from tfdist.data import cifar10
from tfdist.errors import UsageError
from tfdist.process.paths import local_path
from tfdist.tools.commands import cli
from tfdist.tools.watch import curves

pytestmark = pytest.mark.stacks("2.15", "newest")

URL = "gs://bucket/run1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


@pytest.mark.parametrize(
    "url", [URL, Path(URL), "s3://bucket", "hdfs://host:1/run", "file:///tmp/run", "s3a://b/~"]
)
def test_a_url_is_refused(url: str | Path) -> None:
    with pytest.raises(UsageError, match=r"--log_dir: .* because tfdist reads and writes no URL"):
        local_path("--log_dir", url)


@pytest.mark.parametrize("path", ["run1", "/run:1/x", "run 1", "./gs:x", "a~", "x/~/y", ""])
def test_other_paths_are_kept(path: str) -> None:
    assert local_path("output_dir", path) == Path(path)


def test_a_tilde_is_the_home_directory(home: Path) -> None:
    assert local_path("output_dir", "~/run1") == home / "run1"


COMMANDS = [
    ["run", f"--log_dir={URL}", __file__],
    ["run", f"--hostfile={URL}", __file__],
    ["report", URL],
    ["plot", URL],
    ["status", URL],
    ["stacks", URL],
    ["data", "cifar10", f"--data_dir={URL}"],
    ["data", "verify", URL],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_refuse_a_url(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(command)
    assert f"received {URL!r}" in (told := capsys.readouterr().err)
    assert "no URL" in told
    assert not list(Path.cwd().iterdir())


TAKES_PATH: dict[str, Callable[[TinyTraining, str], Any]] = {
    "job.fit": lambda tiny, path: tiny.job().fit(
        tiny.model, tiny.train_input, epochs=1, output_dir=path, verbose=0
    ),
    "job.callbacks": lambda tiny, path: tiny.job().callbacks(path),
    "job.evaluate": lambda tiny, path: tiny.job(
        {"TF_CONFIG": tf_config("evaluator", 0, worker=["a:1", "b:1"])}
    ).evaluate(tiny.model(), tiny.eval_input, path, epochs=0),
    "cifar10.write": lambda _, path: cifar10.write(path, "digits"),
    "cifar10.num_examples": lambda _, path: cifar10.num_examples(path, "train"),
    "cifar10.dataset": lambda _, path: cifar10.dataset(path, "train", batch_size=1),
    "curves.write": lambda _, path: curves.write(path, b""),
}


@pytest.mark.parametrize("name", TAKES_PATH)
def test_functions_refuse_a_url(name: str, tiny: TinyTraining) -> None:
    with pytest.raises(UsageError, match="no URL"):
        TAKES_PATH[name](tiny, URL)
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("name", ["job.fit", "curves.write"])
def test_functions_write_in_the_home_directory(name: str, tiny: TinyTraining, home: Path) -> None:
    TAKES_PATH[name](tiny, "~/written")
    assert [path.name for path in home.iterdir()] == ["written"]
    assert not list(Path.cwd().iterdir())


@pytest.mark.skipif(tensorflow_version() >= (2, 16), reason="TensorFlow 2.16 has no Estimators")
def test_estimators_take_the_same_paths(home: Path) -> None:
    from tfdist.estimator import run_config

    assert run_config._agreed_model_dir("~/run1", None) == str(home / "run1")
    with pytest.raises(UsageError, match="RunConfig model_dir: received 'gs://"):
        run_config._agreed_model_dir(None, URL)
