"""A real Slurm of three nodes on this machine, in network namespaces.

    with cluster(tmp_path) as slurm:
        slurm.command("srun", "--nodes=2", "hostname")     # to run with subprocess

The nodes are n1, n2 and n10, so that their order differs from that of their names. Each daemon is a
child of this process. Needs root, and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.namespaces import Machine, machines

NODES = ("n1", "n2", "n10")
_CONTROLLER_PORT, _NODE_PORT = 16817, 16818
_CONF = """
ClusterName=tfdist
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Otherwise a job is requeued only when the credentials of its first start have expired.
AuthInfo=socket={path}/munge.socket,cred_expire=5
StateSaveLocation={path}/state
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.%n.pid
SlurmdSpoolDir={path}/spool.%n
SlurmctldLogFile={path}/slurmctld.log
SlurmdLogFile={path}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
CommunicationParameters=NoAddrCache
"""


def missing() -> str | None:
    """Why there can be no Slurm on this machine; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    programs = ("slurmctld", "slurmd", "srun", "munged")
    lacking = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(lacking)}: not installed (Debian: slurm-wlm, munge)" if lacking else None


@dataclass(frozen=True)
class Slurm:
    """A running cluster.

    Attributes:
      head: the machine of the controller.
      path: the directory of its files.
    """

    head: Machine
    path: Path

    def command(self, *words: str) -> list[str]:
        """A command that runs on the controller's machine and knows the cluster."""
        return _on(self.head, self.path, "env", f"SLURM_CONF={self.path}/slurm.conf", *words)

    def ask(self, *words: str) -> str:
        """What a command prints."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=60, check=True
        ).stdout


@contextmanager
def cluster(path: Path) -> Iterator[Slurm]:
    """Runs the daemons while the block runs."""
    with ExitStack() as stack:
        head, *nodes = stack.enter_context(machines(1 + len(NODES)))
        _configure(path, head, nodes)
        slurm = Slurm(head, path)

        def start(machine: Machine, *words: str) -> None:
            command = _on(machine, path, *words)
            log = stack.enter_context((path / f"{words[0]}.log").open("a"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(_end, daemon)

        munge = [f"--{name}={path}/munge.{name}" for name in ("socket", "pid-file", "seed-file")]
        key, log = f"--key-file={path}/munge.key", f"--log-file={path}/munged.log"
        start(head, "munged", "--foreground", "--force", key, log, *munge)
        _wait(lambda: (path / "munge.socket").exists(), path)
        conf = ("-D", "-f", f"{path}/slurm.conf")
        start(head, "slurmctld", *conf)
        for machine, name in zip(nodes, NODES, strict=True):
            start(machine, "slurmd", *conf, "-N", name)
        idle = ["sinfo", "--noheader", "--Node", "--format=%T"]
        _wait(lambda: _try(slurm, *idle).split() == ["idle"] * len(NODES), path)
        yield slurm


def _configure(path: Path, head: Machine, nodes: list[Machine]) -> None:
    (path / "state").mkdir()
    lines = [
        _CONF.format(
            host=socket.gethostname(),
            address=head.address,
            controller_port=_CONTROLLER_PORT,
            node_port=_NODE_PORT,
            path=path,
        )
    ]
    hosts = ["127.0.0.1 localhost", f"{head.address} {socket.gethostname()}"]
    for machine, name in zip(nodes, NODES, strict=True):
        (path / f"spool.{name}").mkdir()
        hosts.append(f"{machine.address} {name}")
        lines.append(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr={machine.address} "
            "CPUs=4 RealMemory=4000 State=UNKNOWN"
        )
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=30 State=UP")
    (path / "slurm.conf").write_text("\n".join(lines) + "\n")
    (path / "hosts").write_text("\n".join(hosts) + "\n")
    key = path / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)


def _on(machine: Machine, path: Path, *words: str) -> list[str]:
    """A command on a machine, where the names of the nodes are known."""
    # `ip netns exec` would hide the control groups, which slurmd needs.
    enter = ["nsenter", f"--net=/run/netns/{machine.name}", "unshare", "--mount"]
    script = f'mount --bind {path}/hosts /etc/hosts && exec "$@"'
    return [*enter, "sh", "-c", script, "sh", *words]


def _try(slurm: Slurm, *words: str) -> str:
    try:
        return slurm.ask(*words)
    except subprocess.SubprocessError:
        return ""


def _wait(is_ready: Callable[[], bool], path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(path.glob("*.log"))
            )
            raise TimeoutError(f"Slurm has not started: {logs}")
        time.sleep(0.2)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
