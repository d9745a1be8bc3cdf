"""Real ssh servers on the machines of `namespaces.py`.

    with machines(3) as hosts, servers(tmp_path, hosts) as command:
        [*hosts[0].enter, *command, hosts[1].address, "hostname"]

Each server is a child of this process. Needs root, and Debian's openssh-server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.namespaces import Machine
from tests.support.processes import ROOT

PORT = 2200
_SERVER = """
Port {port}
HostKey {path}/host
AuthorizedKeysFile {path}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
# The checkout of the tests, and not one that is installed.
SetEnv PYTHONPATH={root}
"""
_CLIENT = """
Host *
    Port {port}
    IdentityFile {path}/user
    IdentitiesOnly yes
    StrictHostKeyChecking yes
    UserKnownHostsFile {path}/known_hosts
    LogLevel ERROR
"""


def missing() -> str | None:
    """Why there can be no servers on this machine; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name) is None]
    return f"{', '.join(lacking)}: not installed (Debian: openssh-server)" if lacking else None


@contextmanager
def servers(path: Path, hosts: Sequence[Machine]) -> Iterator[list[str]]:
    """Servers on all hosts while the block runs; yields the command of ssh."""
    for key in ("host", "user"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path / key)]
        subprocess.run(generate, check=True)
    (path / "server.conf").write_text(_SERVER.format(port=PORT, path=path, root=ROOT))
    (path / "client.conf").write_text(_CLIENT.format(port=PORT, path=path))
    public = (path / "host.pub").read_text()
    (path / "known_hosts").write_text(
        "".join(f"[{host.address}]:{PORT} {public}" for host in hosts)
    )
    # sshd separates its privileges in this directory.
    Path("/run/sshd").mkdir(exist_ok=True)
    program = shutil.which("sshd")
    assert program is not None
    with ExitStack() as stack:
        for host in hosts:
            command = [*host.enter_as_host, program, "-D", "-e", "-f", str(path / "server.conf")]
            log = stack.enter_context((path / f"{host.name}.log").open("w"))
            server = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(_end, server)
        for host in hosts:
            _wait(host, path)
        yield ["ssh", "-F", str(path / "client.conf")]


def _wait(host: Machine, path: Path) -> None:
    ssh = ["ssh", "-F", str(path / "client.conf"), "-o", "BatchMode=yes", host.address, "true"]
    deadline = time.monotonic() + 60
    while subprocess.run([*host.enter, *ssh], capture_output=True).returncode != 0:
        if time.monotonic() > deadline:
            raise TimeoutError((path / f"{host.name}.log").read_text())
        time.sleep(0.1)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
