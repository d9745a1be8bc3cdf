"""What is set before TensorFlow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tfdist import runtime

DEFAULTS = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}


@pytest.mark.parametrize(
    ("threads", "added"),
    [
        (None, {}),
        (1, {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}),
        (3, {"TF_NUM_INTRAOP_THREADS": "3", "OMP_NUM_THREADS": "3"}),
    ],
)
def test_the_environment_of_a_task(threads: int | None, added: dict[str, str]) -> None:
    environment = runtime.environment(intra_threads=threads)
    assert environment == {**DEFAULTS, **added}

    environment["TF_CPP_MIN_LOG_LEVEL"] = "9"
    assert runtime.environment(intra_threads=threads) == {**DEFAULTS, **added}


@pytest.mark.parametrize(
    "users", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3"}, {"TF_ENABLE_ONEDNN_OPTS": "", "OTHER": "x"}]
)
def test_what_the_user_has_set_is_kept(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    environ = dict(users)

    runtime.set_environment(environ)

    assert environ == {**DEFAULTS, **users}


def test_nothing_is_set_once_tensorflow_is_imported() -> None:
    import tensorflow as tf

    assert tf.__name__ in sys.modules
    environ: dict[str, str] = {}

    runtime.set_environment(environ)

    assert environ == {}


def test_importing_the_package_sets_the_environment() -> None:
    code = "import os, tfdist; print(*map(os.environ.get, ('{}', '{}')))".format(*DEFAULTS)

    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout

    assert printed == "1 2\n"
