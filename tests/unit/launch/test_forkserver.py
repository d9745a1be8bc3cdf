"""Tasks that are copies of one process: each is as a new process would be."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.launchers import HEADER, ROOT, Start, is_alive, lines_until
from tfdist.launch.forkserver import Forked, ForkServer, ForkServerLostError
from tfdist.launch.starting import Starter

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Ended:
    code: int
    output: str


class Server:
    """A fork server, with what a test needs to look at its tasks."""

    def __init__(self, path: Path, *modules: str) -> None:
        self.path = path
        self.server = ForkServer(modules, ENVIRON)
        self.server.read_ready()

    def start(
        self, script: str, *arguments: str, environ: Mapping[str, str] = ENVIRON
    ) -> tuple[Forked, int]:
        """Starts a script; returns the task and where its output can be read."""
        (self.path / "train.py").write_text(textwrap.dedent(script))
        return self.start_command([str(self.path / "train.py"), *arguments], environ)

    def start_command(
        self, arguments: Sequence[str], environ: Mapping[str, str] = ENVIRON
    ) -> tuple[Forked, int]:
        reader, writer = os.pipe()
        try:
            return self.server.start([sys.executable, *arguments], environ, writer), reader
        finally:
            os.close(writer)

    def run(self, script: str, *arguments: str, **options: Any) -> Ended:
        return ended(*self.start(script, *arguments, **options))


def ended(task: Forked, output: int) -> Ended:
    with os.fdopen(output) as file:
        text = file.read()
    return Ended(task.wait(), text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path, "numpy")
    with closing(found.server):
        yield found


REPORT = """
    import json, os, sys
    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
        "greeting": os.environ.get("GREETING"), "home": os.environ.get("HOME"),
        "parent": os.getppid(), "group": os.getpgid(0) == os.getpid(),
        "stdin": sys.stdin.read(), "main": sys.modules["__main__"].__dict__ is globals(),
    }))
    print("to stderr", file=sys.stderr)
"""


def test_a_task_is_as_a_new_process(server: Server, tmp_path: Path) -> None:
    environ = {"GREETING": "hello"}
    found = server.run(REPORT, "--epochs=2", "x y", environ=environ)
    assert found.code == 0
    report, *rest = found.output.splitlines()
    script = str(tmp_path / "train.py")
    assert json.loads(report) == {
        "argv": [script, "--epochs=2", "x y"],
        "path": str(tmp_path),
        "name": "__main__",
        "file": script,
        "greeting": "hello",
        "home": None,
        "parent": os.getpid(),
        "group": True,
        "stdin": "",
        "main": True,
    }
    assert rest == ["to stderr"]


def test_a_script_may_be_named_from_here(server: Server, tmp_path: Path) -> None:
    """Its `__file__` is absolute all the same, and only its own directory is searched."""
    (tmp_path / "train.py").write_text("import sys; print(__file__, sys.argv, sys.path[:2])")
    path = os.path.relpath(tmp_path / "train.py")
    found = ended(*server.start_command([path]))
    expected = subprocess.run(
        [sys.executable, path], env=ENVIRON, capture_output=True, text=True, check=True
    )
    assert found == Ended(0, expected.stdout)


def test_a_module_may_be_run(server: Server) -> None:
    found = ended(*server.start_command(["-m", "tfdist", "--version"]))
    assert found.code == 0
    expected = subprocess.run(
        [sys.executable, "-m", "tfdist", "--version"],
        env=ENVIRON,
        capture_output=True,
        text=True,
    )
    assert found.output == expected.stdout


@pytest.mark.parametrize(
    "script",
    [
        "raise SystemExit(3)",
        "raise SystemExit('a sentence')",
        "import atexit, sys; atexit.register(print, 'bye'); sys.exit()",
        "def fail():\n    raise ValueError('no')\nfail()",
        "1 +",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import sys; sys.excepthook = lambda *found: print('mine', found[1]); raise ValueError(1)",
        "import threading; threading.Thread(target=print, args=['thread']).start()",
        "import missing",
        "raise SystemExit(300)",
        "file = open('/dev/stdout', 'w'); file.write('closed by nobody')\ndef f(): pass",
        "class Last:\n    def __del__(self):\n        print('gone')\nlast = Last()",
        "import ctypes\nc = ctypes.CDLL(None)\nc.fopen.restype = ctypes.c_void_p\n"
        "c.fputs(b'by the C library', ctypes.c_void_p(c.fopen(b'/dev/stdout', b'w')))",
        "import colorsys, io; colorsys.log = open('/dev/stdout', 'w'); colorsys.log.write('kept')",
    ],
)
def test_a_task_ends_as_a_new_process_does(server: Server, tmp_path: Path, script: str) -> None:
    found = server.run(script)
    expected = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert found == Ended(expected.returncode, expected.stdout)


def test_what_others_remember_of_a_script_is_let_go(server: Server) -> None:
    script = """
    import numpy

    class Last:
        def __del__(self):
            print("gone")

    last = Last()
    numpy.remembered = lambda: last
    """
    assert server.run(script) == Ended(0, "gone\n")


def test_random_numbers_differ(server: Server) -> None:
    script = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = (server.run(script).output.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_what_is_in_main_can_be_sent_to_processes_of_its_own(server: Server) -> None:
    found = server.run("""
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [21]))
    """)
    assert (found.code, found.output) == (0, "[42]\n")


def test_a_task_ends_with_its_launcher(tmp_path: Path) -> None:
    """The launcher here is a process that dies without a word."""
    launcher = f"""
        import os, sys
        sys.path.insert(0, {str(ROOT)!r})
        from tfdist.launch.forkserver import ForkServer
        server = ForkServer([], os.environ)
        server.read_ready()
        task = server.start([sys.executable, {str(tmp_path / "task.py")!r}], os.environ, 1)
        print(task.pid, server._popen.pid, flush=True)
        input()
        os._exit(1)
    """
    (tmp_path / "task.py").write_text("import time\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(launcher)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        pids = process.stdout.readline().split()
        assert len(pids) == 2
        left = [psutil.Process(int(pid)) for pid in pids]
        assert all(map(is_alive, left))
        process.stdin.write("\n")
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive


def test_the_server_may_be_lost(tmp_path: Path) -> None:
    starter = Starter(["numpy"], ENVIRON)
    with closing(starter):
        assert starter.socket is not None
        assert not starter.is_ready
        assert select.select([starter.socket], [], [], 30)[0]
        starter.read_socket()
        assert starter.is_ready
        server = starter._server
        assert server is not None
        server._popen.kill()
        server._popen.wait()
        with pytest.raises(ForkServerLostError):
            server.start([sys.executable, "-c", ""], ENVIRON, 1)
        # A new process in its place.
        task = starter.start([sys.executable, "-c", "raise SystemExit(7)"], ENVIRON, 1)
        assert starter.socket is None
        assert task.wait() == 7


def test_a_server_that_is_lost_before_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os\nos._exit(1)\n")
    starter = Starter(["fatal"], {**ENVIRON, "PYTHONPATH": f"{ROOT}:{tmp_path}"})
    with closing(starter):
        assert starter.socket is not None
        assert select.select([starter.socket], [], [], 30)[0]
        starter.read_socket()
        assert starter.is_ready and starter.socket is None
        task = starter.start([sys.executable, "-c", "raise SystemExit(7)"], ENVIRON, 1)
        assert task.wait() == 7


def test_what_cannot_be_imported_is_left_to_the_tasks(tmp_path: Path) -> None:
    found = Server(tmp_path, "missing", "numpy")
    with closing(found.server):
        assert found.run("import sys; print('numpy' in sys.modules)").output == "True\n"


def test_tensorflow_begins_anew_in_each_task(tmp_path: Path) -> None:
    found = Server(tmp_path, "tensorflow", "tfdist.strategies.horovod")
    script = """
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
    """
    with closing(found.server):
        environ = {**ENVIRON, "TF_ENABLE_ONEDNN_OPTS": "1"}
        outputs = [found.run(script, environ=environ).output for _ in range(2)]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    for task in (first, second):
        assert task["is_there"]
        assert task["threads"] == 1
    for name in ("incarnation", "random", "weights"):
        assert first[name] != second[name]


@pytest.fixture
def in_script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a script, with what those of these tests begin with; returns its name."""

    def write(script: str) -> str:
        (tmp_path / "train.py").write_text(HEADER + textwrap.dedent(script))
        return "train.py"

    return write


TASK = """
    import os, signal, sys, time
    print("tensorflow" in sys.modules, os.environ["GREETING"], flush=True)
    if os.environ["HOROVOD_RANK"] == "1" and not os.path.exists("failed"):
        open("failed", "w").close()
        sys.exit(5)
    wait_for("end")
"""


@pytest.mark.timeout(60)
def test_a_job_starts_and_restarts(
    start: Start, tmp_path: Path, in_script: Callable[[str], str]
) -> None:
    flags = ["--workers=2", "--max_restarts=1", "--restart_delay=0", "--strategy=horovod"]
    command = ["-m", "tfdist", "run", *flags, in_script(TASK)]
    launcher = start(command, extra={"GREETING": "hello"})
    lines_until(launcher, "[worker:0] True hello", "[worker:1] True hello")
    time.sleep(0.5)
    (tmp_path / "end").touch()
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 0, errors
    assert "worker:1 failed with exit code 5, restart 1 of 1 of all tasks" in errors


@pytest.mark.timeout(60)
def test_a_launcher_can_be_ended_while_tensorflow_is_imported(
    start: Start, in_script: Callable[[str], str]
) -> None:
    launcher = start(["-m", "tfdist", "run", "--workers=2", in_script(TASK)])
    while not psutil.Process(launcher.pid).children():
        time.sleep(0.01)
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=5)
    assert launcher.returncode == 128 + signal.SIGINT
    assert output == ""
