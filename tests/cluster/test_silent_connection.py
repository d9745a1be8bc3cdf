"""A worker whose server answers every new connection, but does not read from that of the chief.

TensorFlow's calls have no deadline, so the chief would wait forever, and a heartbeat, which makes
new connections, would see nothing. The connection passes through a proxy that stops forwarding it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.processes import ROOT
from tfdist.coordination.probe import wait_for_server
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(180)]

# All servers of the cluster in one process, because importing TensorFlow takes long.
SERVERS = """
import json, sys, time
import tfdist
import tensorflow as tf
cluster = json.loads(sys.argv[1])
servers = [
    tf.distribute.Server(cluster, job_name=job, task_index=task, protocol="grpc")
    for job, task in (("worker", 0), ("worker", 1), ("ps", 0))
]
servers[0].join()
"""

CHIEF = """
import json, sys, time
import tfdist
import tensorflow as tf
from tfdist.cluster import Task
from tfdist.coordination.liveness import heartbeat
from tfdist.strategies.parameter_server.strategy import _call

cluster = json.loads(sys.argv[1])
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
tasks = [Task("worker", 0), Task("worker", 1), Task("ps", 0)]

class Coordinator:
    reconnecting = None
    def is_reconnecting(self, worker):
        return worker == self.reconnecting

coordinator = Coordinator()
heartbeat.watch_in_subprocess(
    {str(task): cluster[task.type][task.index] for task in tasks},
    6.0,
    calls={str(task): lambda task=task: _call(task, coordinator) for task in tasks},
)
time.sleep(3)  # All tasks have reported.
print("training", flush=True)
if sys.argv[2] == "reconnect":
    coordinator.reconnecting = 1  # TensorFlow does not finish this.
while True:
    _call(tasks[1], coordinator)
    time.sleep(0.1)
"""


class Proxy:
    """Forwards connections to an address; after `stall`, only the new ones."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._generation = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        self._generation += 1

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for one, other in ((client, server), (server, client)):
                    arguments = (one, other, self._generation)
                    threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, generation: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if generation != self._generation:
                    threading.Event().wait()  # Keeps the connection open, and reads nothing.
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def ports() -> Iterator[tuple[int, ...]]:
    with hold_ports(4) as ports:
        yield tuple(ports)


def test_the_chief_names_the_task_and_ends(ports: tuple[int, ...]) -> None:
    hosts = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"worker": hosts[:2], "ps": hosts[2:3], "chief": hosts[3:]}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def start(code: str, cluster: dict[str, list[str]], *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, json.dumps(cluster), *arguments]
        return subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    proxy = Proxy(("127.0.0.1", ports[1]))
    seen_by_chief = {**cluster, "worker": [hosts[0], proxy.address]}
    started = [start(SERVERS, cluster)]
    try:
        assert all(wait_for_server(host, 60) for host in hosts[:3])
        for when in ("reconnect", "in a call"):
            chief = start(CHIEF, seen_by_chief, when)
            started.append(chief)
            assert chief.stdout is not None
            for line in chief.stdout:
                if line == "training\n":
                    break
            if when == "in a call":
                proxy.stall()
            output, _ = chief.communicate(timeout=90)
            # The chief ends by itself, unless a call holds its interpreter.
            assert chief.returncode in (1, -signal.SIGKILL), output
            lost = f"worker:1 was lost: a call of {proxy.address} has not returned for 12 s"
            assert f"Error: {lost}" in output or f"tfdist: error: {lost}" in output, when
    finally:
        for process in started:
            process.kill()
            process.wait()
        proxy.close()
