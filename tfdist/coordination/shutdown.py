"""The completion notice: tells the servers of a parameter-server job that its chief has succeeded.

    announce_completion("10.0.0.1:2222", seconds=10.0)    # the chief's launcher, after exit code 0

Once the chief has exited, its servers see only that nothing listens at its address. Where each
machine restarts its own task after a failure, a server must know whether the chief will return.
The launcher therefore answers at the chief's address for a few seconds after a success.
`tfdist.coordination.probe` recognizes the notice.
"""

from __future__ import annotations

import contextlib
import socket
import time

from tfdist.cluster import host_and_port

#: The environment variable of a task that a launcher on its own machine restarts after a failure.
RESTARTABLE_VARIABLE = "TFDIST_SUPERVISED"

#: The bytes that are sent on each connection.
COMPLETION_NOTICE = b"tfdist: the training is complete\n"

_SEND_SECONDS = 0.5


def announce_completion(address: str, seconds: float) -> None:
    """Sends the completion notice to each connection at `address`, for `seconds`.

    Listens on all interfaces, as TensorFlow's server does.

    Raises:
      OSError: the port cannot be bound.
    """
    _, port = host_and_port(address)
    deadline = time.monotonic() + seconds
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=dualstack) as server:
        while (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SEND_SECONDS)
                connection.sendall(COMPLETION_NOTICE)
