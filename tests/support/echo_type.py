"""A type of task of one's own: its row, and what its tasks serve."""

from __future__ import annotations

import socketserver

from tfdist.cluster import host_and_port
from tfdist.cluster.task_types import TaskType
from tfdist.config.role import TaskRole

ROW = TaskType(
    name="echo", help="number of tasks that echo", function="tests.support.echo_type:serve"
)


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.readline().upper())


def serve(role: TaskRole) -> None:
    """Serves at the address of this task."""
    socketserver.TCPServer.allow_reuse_address = True
    address = host_and_port(role.cluster.address(role.task))
    with socketserver.TCPServer(address, Echo) as server:
        server.serve_forever()
