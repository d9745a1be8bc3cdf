"""Environment variables and CPU affinity that are set before TensorFlow is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.process import setup as runtime

pytestmark = pytest.mark.stacks("2.15", "newest")

DEFAULTS = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(autouse=True)
def cpu_with_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize(
    ("threads", "added"),
    [
        (None, {}),
        (1, {"TF_NUM_INTEROP_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}),
        (3, {"TF_NUM_INTRAOP_THREADS": "3", "OMP_NUM_THREADS": "3"}),
    ],
)
def test_the_environment_of_a_task(threads: int | None, added: dict[str, str]) -> None:
    environment = runtime.environment(intra_threads=threads)
    assert environment == {**DEFAULTS, **added}

    environment["TF_CPP_MIN_LOG_LEVEL"] = "9"
    assert runtime.environment(intra_threads=threads) == {**DEFAULTS, **added}


def test_a_single_core_gets_two_inter_op_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    assert runtime.environment()["TF_NUM_INTEROP_THREADS"] == "2"


@pytest.mark.parametrize(
    "users", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3"}, {"TF_ENABLE_ONEDNN_OPTS": "", "OTHER": "x"}]
)
def test_variables_set_by_the_user_are_kept(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    environ = dict(users)

    runtime.set_environment(environ)

    assert environ == {**DEFAULTS, **users}


def test_nothing_is_set_after_tensorflow_is_imported() -> None:
    import tensorflow as tf

    assert tf.__name__ in sys.modules
    environ: dict[str, str] = {}

    runtime.set_environment(environ)

    assert environ == {}


@pytest.mark.parametrize(
    ("flags", "is_faster"),
    [
        ("sse4_1 sse4_2 avx", False),
        ("sse4_1 sse4_2 avx avx2 fma", True),
        ("avx2 avx512f avx512_vnni", True),
        ("", False),
    ],
)
def test_onednn_is_used_on_cpus_with_avx2(flags: str, is_faster: bool) -> None:
    assert runtime.onednn_is_faster(frozenset(flags.split())) is is_faster


def test_importing_the_package_sets_the_environment() -> None:
    names = "'TF_ENABLE_ONEDNN_OPTS', 'TF_CPP_MIN_LOG_LEVEL'"
    code = f"import os, tfdist; print(*map(os.environ.get, ({names})))"

    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "TF_CPP_MIN_LOG_LEVEL": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout

    has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text()
    assert printed == ("1 1\n" if has_avx2 else "None 1\n")
