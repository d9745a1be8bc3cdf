"""Environment variables and CPU affinity that are set before TensorFlow is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.runtime import environment as runtime

CORES = os.sched_getaffinity(0)
DEFAULTS = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}


@pytest.fixture(autouse=True)
def cpu_with_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_cpu_flags", lambda: frozenset({"avx2"}))
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


@pytest.mark.parametrize(
    ("tasks", "cores", "shares"),
    [
        (2, {0, 1, 2, 3}, [{0, 1}, {2, 3}]),
        (3, {4, 5, 6, 7}, [{4}, {5}, {6, 7}]),
        (2, {1, 9}, [{1}, {9}]),
        (3, {0, 1}, [{0, 1}] * 3),
    ],
)
def test_cores_are_divided(tasks: int, cores: set[int], shares: list[set[int]]) -> None:
    found = [runtime.cores_of(place, tasks, frozenset(cores)) for place in range(tasks)]

    assert found == shares


@pytest.mark.parametrize("share", [None, "1/2"])
def test_a_task_is_pinned_to_its_cores_and_logs_the_settings(share: str | None) -> None:
    environ = {"TFDIST_CORES": share} if share else {}
    code = (
        "import os, threading; from tfdist.runtime import environment as runtime;"
        "runtime.take_cores(); assert os.environ.get(runtime.CORES_VARIABLE) in (None, '0/1');"
        "thread = threading.Thread(target=lambda: print(*os.sched_getaffinity(0)));"
        "thread.start(); thread.join(); print(runtime.description(os.environ))"
    )

    cores, description = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "TF_ENABLE_ONEDNN_OPTS": "0", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.splitlines()

    own = sorted(CORES)
    mine = own[len(own) // 2 :] if share and len(own) > 1 else own
    assert sorted(map(int, cores.split())) == mine
    assert description.startswith("oneDNN off, core")
    assert description.endswith(f" of {os.cpu_count()}")


@pytest.mark.parametrize(
    ("tasks", "machine", "own", "variable", "kept"),
    [
        (2, 4, {0, 1, 2, 3}, None, {2, 3}),
        (2, 2, {0, 1}, None, {1}),
        (1, 4, {0, 1, 2, 3}, None, None),
        # Slurm or a container has already restricted the affinity.
        (2, 4, {2, 3}, None, None),
        # `tfdist run --cores=share`, and child processes of a task.
        (2, 4, {0, 1, 2, 3}, runtime.ALL_CORES, None),
    ],
)
def test_tasks_started_by_hand_divide_the_cores_of_their_machine(
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    machine: int,
    own: set[int],
    variable: str | None,
    kept: set[int] | None,
) -> None:
    affinity = [own]
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: affinity.append(set(cores)))
    environ = {} if variable is None else {runtime.CORES_VARIABLE: variable}

    for _ in range(2):  # The second call is that of a child process.
        runtime.divide_cores(tasks - 1, tasks, environ)

    assert affinity == ([own] if kept is None else [own, kept])
    assert environ.get(runtime.CORES_VARIABLE) == (variable if kept is None else runtime.ALL_CORES)
    assert environ.get("TF_NUM_INTEROP_THREADS") == ("2" if kept == {1} else None)


def test_importing_the_package_sets_the_environment() -> None:
    names = "'TF_ENABLE_ONEDNN_OPTS', 'TF_CPP_MIN_LOG_LEVEL'"
    code = f"import os, tfdist; print(*map(os.environ.get, ({names})))"

    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout

    has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text()
    assert printed == ("1 2\n" if has_avx2 else "None 2\n")
