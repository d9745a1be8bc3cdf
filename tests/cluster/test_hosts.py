"""`tfdist run --hosts`: a job on three hosts, over real ssh, from one terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import ssh
from tests.support.namespaces import Machine, machines
from tests.support.pages import readme_script
from tests.support.processes import ROOT
from tests.support.terminal import Terminal
from tests.support.tunnels import needs_tunnels

pytestmark = [
    pytest.mark.stacks("newest"),
    pytest.mark.timeout(200),
    pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing())),
    pytest.mark.xdist_group("hosts"),
]

ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
# What each task does; ACTION depends on the test.
SCRIPT = """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
name = f"{config['task']['type']}:{config['task']['index']}"
def stop(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("token", os.environ["TFDIST_JOB_TOKEN"], config["cluster"], flush=True)
open(f"ready-{config['task']['index']}", "w").close()
ACTION
"""


@dataclass(frozen=True)
class Hosts:
    """Machines with ssh servers; the launcher runs on the first one."""

    machines: Sequence[Machine]
    ssh: Sequence[str]

    @property
    def names(self) -> list[str]:
        return [machine.address for machine in self.machines]

    def command(self, hosts: str, *words: str) -> list[str]:
        command = [sys.executable, "-m", "tfdist", "run", f"--hosts={hosts}"]
        return [*self.machines[0].enter, *command, f"--ssh={' '.join(self.ssh)}", *words]

    def start(self, directory: Path, hosts: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(hosts, *words),
            env={**os.environ, **ENVIRONMENT},
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with machines(3) as found, ssh.servers(tmp_path_factory.mktemp("ssh"), found) as command:
        yield Hosts(found, command)


def write(directory: Path, action: str) -> str:
    (directory / "train.py").write_text(SCRIPT.replace("ACTION", action))
    return "train.py"


def processes_of(directory: Path) -> list[psutil.Process]:
    """The tasks, by their directory, which is that of the test."""
    found = []
    for process in psutil.process_iter():
        try:
            is_task = process.cmdline()[1:] == ["train.py"]
            if is_task and process.cwd() == str(directory):
                found.append(process)
        except psutil.Error:
            continue
    return found


def are_ready(directory: Path) -> bool:
    """Whether all three tasks have installed their handlers."""
    return len([*directory.glob("ready-*")]) == 3


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_three_hosts_train_together(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(readme_script())
    command = hosts.command(",".join(hosts.names), "train.py", "--output_dir=run1")
    with Terminal(command, columns=250, environ=ENVIRONMENT, directory=tmp_path) as terminal:
        # Of 20 steps in each of three epochs.
        terminal.wait_for(" of 60  epoch ", deadline=100)
        assert terminal.wait(deadline=150) == 0, terminal.text
    for number, name in enumerate(hosts.names):
        assert f"[{name}] [worker:{number}] loss 0." in terminal.text
    assert (tmp_path / "run1" / "done.json").exists()
    # The last panel.
    for number, name in enumerate(hosts.names):
        task = f"worker:{number} on {name}"
        row = f"{task} (chief)" if number == 0 else task
        assert re.search(rf"^{re.escape(row)} +done +\d\d ", terminal.text, re.MULTILINE)
    assert "tfdist: result    complete" in terminal.text
    assert re.search("tfdist: speed     .* examples/s; step 60, loss ", terminal.text)


@needs_tunnels
@pytest.mark.horovod
def test_a_script_that_calls_hvd_init_trains_on_three_hosts(hosts: Hosts, tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "support" / "plain" / "horovod_loop.py")
    # Gloo listens on ports that only it knows: over TLS they are reached, too.
    options = ["--strategy=horovod", "--cluster_as=horovodrun", "--tls"]
    launcher = hosts.start(tmp_path, ",".join(hosts.names), *options, script)
    printed, _ = launcher.communicate(timeout=150)
    assert launcher.returncode == 0, printed
    assert "\x1e" not in printed, "without a terminal, hosts tell nothing of their tasks"
    for number, name in enumerate(hosts.names):
        assert f"[{name}] [worker:{number}] rank {number} of 3 has trained" in printed


MEETS = """
import os, socket

rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
local = os.environ["LOCAL_RANK"] + "/" + os.environ["LOCAL_WORLD_SIZE"]
assert "TF_CONFIG" not in os.environ
if rank:
    while True:
        try:
            socket.create_connection(place, 1).sendall(bytes([rank]))
            break
        except OSError:
            pass
else:
    with socket.create_server(("", place[1])) as server:
        print("met", *sorted(server.accept()[0].recv(1)[0] for _ in range(1, size)), flush=True)
print("place", rank, local, flush=True)
"""


@pytest.mark.parametrize("options", [[], pytest.param(["--tls"], marks=needs_tunnels)])
def test_the_ranks_of_another_library_meet(
    hosts: Hosts, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "train.py").write_text(MEETS)
    first, second, _ = hosts.names
    launcher = hosts.start(
        tmp_path, f"{first},{second}:2", "--cluster_as=torch", *options, "train.py"
    )
    printed, _ = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, printed
    assert f"[{first}] [worker:0] met 1 2\n" in printed
    for name, rank, local in ((first, 0, "0/1"), (second, 1, "0/2"), (second, 2, "1/2")):
        assert f"[{name}] [worker:{rank}] place {rank} {local}\n" in printed


def test_the_first_culprit_is_named_and_its_code_returned(hosts: Hosts, tmp_path: Path) -> None:
    # When all four have printed something.
    action = (
        "open(f'started-{name}', 'w').close()\n"
        "while sum(file.startswith('started-') for file in os.listdir()) < 4:\n"
        "    time.sleep(0.1)\n"
        "sys.exit(7) if name == 'worker:1' else time.sleep(100)"
    )
    script = write(tmp_path, action)
    first, second, _ = hosts.names
    options = ["--strategy=parameter_server", "--ps=1", "--chief"]
    launcher = hosts.start(tmp_path, f"{first},{second}:2", *options, script)
    printed, _ = launcher.communicate(timeout=100)
    assert launcher.returncode == 7, printed
    assert f"[{second}] tfdist: worker:1 failed with exit code 7" in printed
    assert f"tfdist: {second} failed with exit code 7, ending {first}" in printed
    # The chief and worker:0 and worker:1 fill the slots.
    assert printed.index(f"[{first}] [chief:0]") >= 0
    assert f"[{first}] [ps:0]" in printed
    assert f"[{second}] [worker:0]" in printed
    assert processes_of(tmp_path) == []


def test_a_signal_reaches_all_tasks_and_no_argument_has_the_token(
    hosts: Hosts, tmp_path: Path
) -> None:
    script = write(tmp_path, "time.sleep(100)")
    launcher = hosts.start(tmp_path, ",".join(hosts.names), script)
    wait_until(lambda: are_ready(tmp_path))
    found = psutil.process_iter(["cmdline"])
    arguments = [" ".join(each.info["cmdline"] or []) for each in found]
    launcher.send_signal(signal.SIGTERM)
    printed, _ = launcher.communicate(timeout=100)
    assert launcher.returncode == 75, printed
    assert printed.count("saved") == 3
    token = printed.partition("token ")[2].split()[0]
    assert len(token) == 32
    assert not any(token in each for each in arguments)


def test_no_task_outlives_the_launcher(hosts: Hosts, tmp_path: Path) -> None:
    launcher = hosts.start(tmp_path, ",".join(hosts.names), write(tmp_path, "time.sleep(100)"))
    wait_until(lambda: are_ready(tmp_path))
    assert len(processes_of(tmp_path)) == 3
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_until(lambda: processes_of(tmp_path) == [])


@pytest.mark.parametrize("seconds", [4, None])
def test_a_host_that_cannot_be_reached(hosts: Hosts, tmp_path: Path, seconds: int | None) -> None:
    """For four seconds it is survived; for good, the host is named."""
    script = write(tmp_path, f"time.sleep({15 if seconds else 100})")
    last = hosts.machines[2]
    launcher = hosts.start(tmp_path, ",".join(hosts.names), script)

    def link(state: str) -> None:
        command = ["ip", "-n", last.name, "link", "set", "eth0", state]
        subprocess.run(command, check=True)

    try:
        wait_until(lambda: are_ready(tmp_path))
        link("down")
        if seconds:
            time.sleep(seconds)
            link("up")
        printed, _ = launcher.communicate(timeout=120)
    finally:
        link("up")
    if seconds:
        assert launcher.returncode == 0, printed
        return
    assert launcher.returncode == 1, printed
    assert f"the connection to {last.address} has ended with code 255" in printed
    assert f"tfdist: {last.address} failed with exit code 1, ending" in printed


@pytest.mark.parametrize(
    ("hosts_flag", "message"),
    [
        (["--hosts=a,a"], "--hosts: received 'a,a'"),
        (["--hosts=,"], "--hosts: received ','"),
        (["--hosts=a:x"], "--hosts: received 'a:x'"),
        (["--hostfile=/no/file"], "--hostfile: received '/no/file'"),
        (["--hosts=a", "--workers=2"], "--workers: received 2; accepted: at most 1"),
        (["--hosts=a", "--hostfile=b"], "--hostfile: received 'b'"),
        (["--tls", "--workers=2"], "--tls: received True; accepted: with --hosts or --hostfile"),
    ],
)
def test_a_mistake_is_a_sentence(hosts_flag: list[str], message: str, tmp_path: Path) -> None:
    script = write(tmp_path, "")
    command = [sys.executable, "-m", "tfdist", "run", *hosts_flag]
    flags = ["--strategy=multi_worker_mirrored", str(tmp_path / script)]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"tfdist: error: {message}")
