"""The examples report a mistake in one line and exit with code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import downloads
from tests.support.processes import ROOT, Ended, run_by_hand
from tfdist.data import cifar10

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    cifar10.write(directory, "digits")
    return directory


def run(path: Path, script: str, *flags: str) -> Ended:
    command = [sys.executable, str(ROOT / "examples" / script), *flags]
    return run_by_hand(path, {"example": (command, {})}, deadline=50)["example"]


@pytest.mark.parametrize("script", ["cifar10_main.py", "cifar10_estimator_main.py"])
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--num_layers=9"], "--num_layers: received 9"),
        (["--decay_epochs=3,soon"], "--decay_epochs"),
        (["--decay_epochs="], "--decay_epochs"),
        (["--train-batch-size=many"], "--train_batch_size"),
        (["--data_dir=nowhere"], "--data_dir: received 'nowhere'"),
        (
            ["--strategy=mirrored", "--num-cpu-devices=2", "--train_batch_size=5"],
            "batch size of a task: received 5; accepted: a multiple of 2",
        ),
    ],
)
def test_a_mistake_exits_with_code_2(
    tmp_path: Path, digits: Path, script: str, flags: list[str], named: str
) -> None:
    done = run(
        tmp_path,
        script,
        f"--data_dir={digits}",
        f"--output_dir={tmp_path / 'output'}",
        *flags,
    )
    (line,) = (line for line in done.output.splitlines() if line.startswith("tfdist: error: "))
    assert named in line
    assert done.code == 2
    assert "Traceback" not in done.output
    assert not (tmp_path / "output").exists(), "nothing should be written"


@pytest.mark.parametrize(
    ("script", "typed", "named"),
    [
        (
            "cifar10_estimator_main.py",
            ["--use-distortion-for-training", "False", "--data-dir=x"],
            "--use_distortion_for_training: received '--use_distortion_for_training False'",
        ),
        ("cifar10_estimator_main.py", ["data", "--data-dir=x"], "command line: received 'data'"),
        ("cifar10_main.py", ["data", "--data-dir=x"], "command line: received 'data'"),
        ("mnist_horovod_estimator.py", ["data"], "command line: received 'data'"),
        ("mnist_replica.py", ["data"], "command line: received 'data'"),
    ],
)
def test_positional_arguments_are_rejected(
    tmp_path: Path, script: str, typed: list[str], named: str
) -> None:
    output = tmp_path / "output"
    done = run(tmp_path, script, *typed, f"--output_dir={output}")

    assert f"tfdist: error: {named}; accepted: " in done.output
    assert done.code == 2


def test_fashion_mnist_without_a_network_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "fashion_mnist_mirrored.py")
    command = [sys.executable, script, f"--output_dir={tmp_path / 'output'}"]
    environment = downloads.environment(tmp_path / "home")
    done = run_by_hand(tmp_path, {"example": (command, environment)}, deadline=50)["example"]

    assert done.code == 2, done.output
    first, *_, line = done.output.splitlines()
    assert first.startswith("tfdist: worker:0 of this process alone")
    assert line.startswith("tfdist: error: --data_source: received 'fashion_mnist'; accepted: ")
    assert "Use --data_source=digits" in line
    assert not (tmp_path / "output").exists(), "nothing should be written"


@pytest.mark.parametrize("typed", ["--num_gpus=1", "--num-gpu=1"])
def test_a_requested_gpu_is_optional(tmp_path: Path, digits: Path, typed: str) -> None:
    """The platform passes --num_gpus=1 to every task."""
    done = run(
        tmp_path,
        "cifar10_estimator_main.py",
        f"--data_dir={digits}",
        f"--job-dir={tmp_path / 'output'}",
        "--num_layers=9",  # An error, so that the script exits early.
        typed,
    )

    assert "--num_gpus=1: TensorFlow sees no GPU; using the CPU\n" in done.output
    assert "--num_layers: received 9" in done.output
    assert done.code == 2


def test_the_classic_script_accepts_sync_replicas_for_sync() -> None:
    code = """
import sys
from absl import flags
from examples import mnist_replica
from tfdist.config.flags import parse_flags, read_flags

for typed in (sys.argv[1:], ["--nosync_replicas"], ["--sync_replicas=True"], []):
    flags.FLAGS.unparse_flags()
    flags.FLAGS["sync"].value = False
    parse_flags(["script", "--output_dir=x", *typed])
    print(read_flags().of_strategy.get("sync"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "--sync-replicas"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout.split() == ["True", "False", "True", "False"], done.stderr


def test_the_examples_find_estimators_beside_them(tmp_path: Path) -> None:
    """The package that users install does not have it."""
    (tmp_path / "tfdist").symlink_to(ROOT / "tfdist")
    code = """
import runpy, sys
from absl import flags

path = list(sys.path)
for script in sys.argv[1:]:
    runpy.run_path(script, run_name="example")
    print(sys.modules["estimators"].__file__)
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] == "estimators"]:
        del sys.modules[name]
    for name in list(flags.FLAGS):
        delattr(flags.FLAGS, name)
"""
    names = ("cifar10_main.py", "cifar10_estimator_main.py", "mnist_horovod_estimator.py")
    scripts = [str(ROOT / "examples" / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-c", code, *scripts],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout.split() == [str(ROOT / "estimators" / "__init__.py")] * 3, done.stderr


@pytest.mark.timeout(180)
def test_the_recommender_learns_the_hidden_groups(tmp_path: Path) -> None:
    sizes = ["--users=5000", "--items=1000", "--width=16", "--steps=150", "--epochs=2"]
    command = [sys.executable, str(ROOT / "examples" / "recommender.py"), *sizes]
    command += ["--batch_size=128", f"--output_dir={tmp_path / 'output'}"]
    done = run_by_hand(tmp_path, {"example": (command, {})}, deadline=170)["example"]

    assert done.code == 0, done.output
    recall = float(done.output.split("recall of 10 in 128: ")[1].split()[0])
    assert recall > 3 * 10 / 128
