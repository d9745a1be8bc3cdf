"""Tasks that are copies of the fork server: each does what a new process does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import processes
from tests.support.launchers import DEADLINE, HEADER, ROOT, Start, is_alive, lines_until
from tfdist.tools.launch.output import Printer
from tfdist.tools.launch.process import Process
from tfdist.tools.launch.run_script import MODULE
from tfdist.tools.launch.task_plan import TaskSpec

pytestmark = pytest.mark.stacks("newest")

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Ended:
    code: int
    output: str


def run(arguments: Sequence[str], environ: Mapping[str, str] = ENVIRON) -> Ended:
    """Runs `python ARGUMENTS` as a copy of the fork server."""
    reader, writer = os.pipe()
    try:
        task = processes.fork_server().start([sys.executable, *arguments], environ, writer)
    finally:
        os.close(writer)
    with os.fdopen(reader) as output:
        text = output.read()
    return Ended(task.wait(), text)


def run_new(arguments: Sequence[str], environ: Mapping[str, str] = ENVIRON) -> Ended:
    """Runs `python ARGUMENTS` as a new process."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Ended(done.returncode, done.stdout)


InScript = Callable[[str], str]


@pytest.fixture
def in_script(tmp_path: Path) -> InScript:
    """Writes a script; returns its path."""

    def write(script: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        return str(path)

    return write


REPORT = """
    import json, multiprocessing, os, sys
    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
        "greeting": os.environ.get("GREETING"), "home": os.environ.get("HOME"),
        "safe_path": os.environ.get("PYTHONSAFEPATH"),
        "group": os.getpgid(0) == os.getpid(), "session": os.getsid(0) == os.getpid(),
        "stdin": sys.stdin.read(), "main": sys.modules["__main__"].__dict__ is globals(),
        "method": multiprocessing.get_start_method(allow_none=True),
        "process": multiprocessing.current_process().name,
    }))
    print("to stderr", file=sys.stderr)
"""


def test_a_task_is_as_a_new_process(in_script: InScript, tmp_path: Path) -> None:
    script = in_script(REPORT)
    found = run([script, "--epochs=2", "x y"], {"GREETING": "hello"})
    assert found.code == 0
    report, *rest = found.output.splitlines()
    assert json.loads(report) == {
        "argv": [script, "--epochs=2", "x y"],
        "path": str(tmp_path),
        "name": "__main__",
        "file": script,
        "greeting": "hello",
        "home": None,
        "safe_path": None,
        "group": True,
        "session": True,
        "stdin": "",
        "main": True,
        "method": None,
        "process": "MainProcess",
    }
    assert rest == ["to stderr"]


def test_a_relative_path_is_enough(in_script: InScript) -> None:
    """`__file__` is absolute, and the search path has the script's directory only."""
    script = os.path.relpath(in_script("import sys; print(__file__, sys.argv, sys.path[:2])"))
    assert run([script]) == run_new([script])


def test_a_script_imports_its_neighbours(in_script: InScript, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("print('imported')\n")
    assert run([in_script("import neighbour")]) == Ended(0, "imported\n")


def test_a_user_may_leave_out_the_scripts_directory(
    in_script: InScript, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With PYTHONSAFEPATH, as in a new process."""
    script = in_script("import sys; print(sys.path)")
    monkeypatch.chdir(tmp_path)
    environ = {**ENVIRON, "PYTHONSAFEPATH": "1"}
    for arguments in ([script], [*MODULE, "train"]):
        found = run(arguments, environ)
        assert found == run_new(arguments, environ)
        assert str(tmp_path) not in found.output


def test_a_module_may_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "neighbour.py").write_text("")
    (package / "train.py").write_text(
        "import sys; from . import neighbour\n"
        "print(sys.argv, __file__, __spec__.name, __package__, neighbour, sorted(sys.path))\n"
        "log = open('/dev/stdout', 'w')\nlog.write('never closed')\ndef f(): log\n"
    )
    monkeypatch.chdir(tmp_path)
    for arguments in (["package.train", "--epochs=2"], ["tfdist", "--version"]):
        expected = run_new(["-m", *arguments])
        assert expected.code == 0
        assert run([*MODULE, *arguments]) == run_new([*MODULE, *arguments]) == expected


@pytest.mark.parametrize(
    "script",
    [
        "raise SystemExit(3)",
        "import atexit; atexit.register(print, 'bye'); raise KeyboardInterrupt",
    ],
)
def test_a_module_ends_as_with_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_script: InScript, script: str
) -> None:
    in_script(script)
    monkeypatch.chdir(tmp_path)
    found = run_new([*MODULE, "train"])
    assert found == run([*MODULE, "train"])
    assert found.code == run_new(["-m", "train"]).code


@pytest.mark.parametrize("name", ["missing", "missing.train"])
def test_a_missing_module_is_named_in_one_line(name: str) -> None:
    missing = run([*MODULE, name])
    assert missing == run_new([*MODULE, name])
    assert missing.code == 1
    assert re.fullmatch(f"{sys.executable}: No module named '?missing'?\n", missing.output)


@pytest.mark.parametrize(
    "script",
    [
        "raise SystemExit(3)",
        "raise SystemExit('a sentence')",
        "raise SystemExit(300)",
        "import atexit, sys; atexit.register(print, 'bye'); sys.exit()",
        "def fail():\n    raise ValueError('no')\nfail()",
        "1 +",
        "import missing",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        # The thread that receives the signal may tell the main thread a moment later.
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
        "import atexit; atexit.register(print, 'bye'); raise KeyboardInterrupt",
        "import sys; sys.excepthook = lambda *found: print('mine', found[1]); raise ValueError(1)",
        "import threading, time\n"
        "threading.Thread(target=lambda: time.sleep(0.1) or print(__name__)).start()",
        "file = open('/dev/stdout', 'w'); file.write('never closed')\ndef f(): pass",
        "import sched, io; sched.log = open('/dev/stdout', 'w'); sched.log.write('kept')",
        "import ctypes\nc = ctypes.CDLL(None)\nc.fopen.restype = ctypes.c_void_p\n"
        "c.fputs(b'by the C library', ctypes.c_void_p(c.fopen(b'/dev/stdout', b'w')))",
        "class Last:\n    def __del__(self):\n        print('gone')\nlast = Last()",
        "import atexit, pickle\nclass Mine: pass\n"
        "atexit.register(lambda: print(pickle.dumps(Mine)))",
    ],
)
def test_a_task_ends_as_a_new_process_does(in_script: InScript, script: str) -> None:
    path = in_script(script)
    assert run([path]) == run_new([path])


def test_random_numbers_differ(in_script: InScript) -> None:
    script = in_script("import random, numpy; print(random.random(), numpy.random.rand())")
    first, second = (run([script]).output.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_task_may_have_processes_of_its_own(in_script: InScript, method: str) -> None:
    script = in_script(f"""
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            multiprocessing.set_start_method("{method}")
            with multiprocessing.Pool(1) as pool:
                print(pool.map(double, [21]))
    """)
    assert run([script]) == Ended(0, "[42]\n")


def test_a_task_can_be_killed_right_after_its_start(in_script: InScript, tmp_path: Path) -> None:
    script = in_script("import time; time.sleep(60)")
    for _ in range(5):
        process = Process(
            TaskSpec("worker:0", (sys.executable, script), {}),
            "",
            ENVIRON,
            tmp_path / "error.json",
            Printer(),
            processes.fork_server().start,
        )
        process.signal(signal.SIGKILL)
        while not process.has_ended():
            time.sleep(0.001)
        assert process.close() == -signal.SIGKILL


@pytest.fixture
def run_launcher(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs a launcher that has a fork server of its own; returns the lines that it prints.

    The launcher has `start(script)`; it is a script that does not check `__name__`.
    """

    def run_it(script: str, *modules: str) -> list[str]:
        header = f"""
import os, signal, subprocess, sys
from pathlib import Path
from tfdist.tools.launch.forkserver import ForkServer

print("launcher", flush=True)
server = ForkServer({modules!r}, os.environ)
server.read_ready()

def start(script):
    path = Path("task.py")
    path.write_text(script)
    return server.start([sys.executable, str(path)], os.environ, 1)
"""
        (tmp_path / "launcher.py").write_text(header + textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, "launcher.py"],
            cwd=tmp_path,
            env={**ENVIRON, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        first, *rest = done.stdout.splitlines()
        assert first == "launcher", done.stdout
        return rest

    return run_it


RunLauncher = Callable[..., list[str]]


def test_a_task_ends_with_its_launcher(run_launcher: RunLauncher) -> None:
    """The launcher is killed, and so are the fork server and the task."""
    (line,) = run_launcher("""
        start("import os, time\\nprint(os.getpid(), os.getppid(), flush=True)\\ntime.sleep(60)")
        signal.sigtimedwait([], 1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    until = time.monotonic() + DEADLINE
    left = [pid for pid in map(int, line.split()) if psutil.pid_exists(pid)]
    while any(is_alive(psutil.Process(pid)) for pid in left if psutil.pid_exists(pid)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_server_may_be_lost(run_launcher: RunLauncher) -> None:
    """Its tasks end with it; the next task starts in a new one, or as a new process."""
    lines = run_launcher("""
        task = start("import os, signal; os.kill(os.getppid(), 9); signal.pause()")
        print(task.wait(), flush=True)
        print(start("raise SystemExit(7)").wait())
    """)
    assert lines == ["255", "7"]


def test_a_server_that_is_lost_before_it_is_ready(
    run_launcher: RunLauncher, tmp_path: Path
) -> None:
    """New processes are started in its place."""
    (tmp_path / "fatal.py").write_text("import os\nos._exit(1)\n")
    script = "print(start(f'import os, sys; sys.exit(os.getppid() == {os.getpid()})').wait())"
    assert run_launcher(script, "fatal") == ["1"]


def test_what_cannot_be_imported_is_left_to_the_tasks(
    run_launcher: RunLauncher, tmp_path: Path
) -> None:
    """What the fork server prints meanwhile is not shown."""
    (tmp_path / "loud.py").write_text("import sys; print(1); print(2, file=sys.stderr); 1 / 0\n")
    script = "start('import sys; print(\"numpy\" in sys.modules)').wait()"
    assert run_launcher(script, "missing", "loud", "numpy") == ["True"]


def test_the_exit_functions_of_the_server_run_in_its_tasks(
    run_launcher: RunLauncher, tmp_path: Path
) -> None:
    """But no task removes a directory that the others use."""
    (tmp_path / "cache.py").write_text(
        "import atexit, os, shutil\n"
        "os.mkdir('shared')\n"
        "atexit.register(shutil.rmtree, 'shared')\n"
        "atexit.register(print, 'bye')\n"
    )
    script = """
        for _ in range(2):
            start("import cache").wait()
        print(os.path.isdir("shared"))
    """
    assert run_launcher(script, "cache") == ["bye", "bye", "True"]


# What the fork server does in later releases of Python 3.12 and 3.13.
TAKES_THE_LAUNCHERS_PATH = """
import sys
from multiprocessing import forkserver

main = forkserver.main

def main_with_path(*arguments, sys_path=None, **options):
    sys.path[:] = sys_path
    main(*arguments, **options)

forkserver.main = main_with_path
"""


@pytest.mark.parametrize("takes_path", [False, True])
def test_a_task_searches_modules_where_a_new_process_does(
    run_launcher: RunLauncher, tmp_path: Path, takes_path: bool
) -> None:
    if takes_path:
        (tmp_path / "sitecustomize.py").write_text(TAKES_THE_LAUNCHERS_PATH)
    task, new_process = run_launcher("""
        start("import sys; print(sys.path)").wait()
        subprocess.run([sys.executable, "task.py"])
    """)
    assert task == new_process


def test_each_task_has_a_tensorflow_of_its_own(in_script: InScript) -> None:
    script = in_script("""
        import json, os, sys
        is_there, threads = "tensorflow" in sys.modules, len(os.listdir("/proc/self/task"))
        import tensorflow as tf
        from tensorflow.python.client import device_lib
        (device,) = device_lib.list_local_devices()
        print(json.dumps({
            "is_there": is_there, "threads": threads, "incarnation": device.incarnation,
            "random": float(tf.random.uniform([])),
            "weights": tf.keras.layers.Dense(1)(tf.ones([1, 1])).numpy().tolist(),
            "onednn": os.environ["TF_ENABLE_ONEDNN_OPTS"],
        }))
    """)
    outputs = [run([script], {**ENVIRON, "TF_ENABLE_ONEDNN_OPTS": "1"}).output for _ in range(2)]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    for task in (first, second):
        assert task["is_there"]
        assert task["threads"] == 1
    for name in ("incarnation", "random", "weights"):
        assert first[name] != second[name]


def test_a_task_with_tensorflow_ends_quietly(in_script: InScript, tmp_path: Path) -> None:
    """TensorFlow's objects are freed in order, and its default summary writer is flushed."""
    script = in_script(f"""
        import tensorflow as tf
        import tfdist

        tf.summary.create_file_writer({str(tmp_path / "summaries")!r}).set_as_default()
        tf.summary.scalar("loss", 1.0, step=1)
        counter = tf.Variable(1.0)

        @tf.function
        def step():
            return counter.assign_add(1.0)

        step()
    """)
    ended = run([script])
    assert ended.code == 0
    # Newer TensorFlow looks for a driver, because the script does not call `tfdist.init`.
    assert [line for line in ended.output.splitlines() if "cuInit" not in line] == []
    (events,) = (tmp_path / "summaries").iterdir()
    assert b"loss" in events.read_bytes()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("sys.exit(5)", "worker:1 failed with exit code 5, restart 1 of 1 of all tasks"),
        # The fork server is lost, and all tasks with it.
        ("os.kill(os.getppid(), 9)", "failed with exit code 255, restart 1 of 1 of all tasks"),
    ],
)
def test_a_job_starts_and_restarts(
    start: Start, tmp_path: Path, in_script: InScript, failure: str, message: str
) -> None:
    script = in_script(f"""{HEADER}
if os.path.exists(name):
    print("again", flush=True)
    wait_for("end")
else:
    print("tensorflow" in sys.modules, os.environ["GREETING"], flush=True)
    open(name, "w").close()
    wait_for("worker:0")
    wait_for("worker:1")
    if name == "worker:1":
        {failure}
    wait_for("end")
""")
    flags = ["--workers=2", "--max_restarts=1", "--restart_delay=0"]
    launcher = start(["-m", "tfdist", "run", *flags, script], extra={"GREETING": "hello"})
    lines_until(launcher, "[worker:0] True hello", "[worker:1] True hello")
    lines_until(launcher, "[worker:0] again", "[worker:1] again")
    (tmp_path / "end").touch()
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 0, errors
    assert message in errors


def test_a_launcher_can_be_ended_while_tensorflow_is_imported(
    start: Start, in_script: InScript
) -> None:
    launcher = start(["-m", "tfdist", "run", "--workers=2", in_script("print('started')")])
    while not psutil.Process(launcher.pid).children():
        time.sleep(0.01)
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 128 + signal.SIGINT
    assert output == ""
