"""The completion notice: tells the servers of a parameter-server job that its chief has succeeded.

    announce_completion("10.0.0.1:2222", token, seconds=10.0)    # in the chief's launcher
    with socket.create_connection(address) as connection:        # in a server
        assert connection.recv(len(COMPLETION_NOTICE)) == COMPLETION_NOTICE
        is_proved(connection, token)

Once the chief has exited, its servers see only that nothing listens at its address. Where each
machine restarts its own task after a failure, a server must know whether the chief will return.
The launcher therefore answers at the chief's address for a few seconds after a success. It proves
with the job's token that it is the job's launcher, because others could listen there as well.
`tfdist.coordination.probe` recognizes the notice.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import time

from tfdist.cluster import host_and_port
from tfdist.coordination.listening import listen
from tfdist.coordination.seal import NONCE_LENGTH, new_nonce, proof

#: The environment variable of a task that a launcher on its own machine restarts after a failure.
RESTARTABLE_VARIABLE = "TFDIST_SUPERVISED"

#: The first bytes that are sent on each connection.
COMPLETION_NOTICE = b"tfdist: the training is complete\n"

_ANSWER_SECONDS = 0.5
_STATEMENT = "complete"


def announce_completion(address: str, token: str, seconds: float) -> None:
    """Sends the completion notice and its proof to each connection at `address`, for `seconds`.

    Raises:
      OSError: the port cannot be bound.
    """
    _, port = host_and_port(address)
    deadline = time.monotonic() + seconds
    with listen(port) as server:
        while (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(COMPLETION_NOTICE)
                nonce = _receive(connection, NONCE_LENGTH)
                connection.sendall(proof(token, _STATEMENT, nonce.decode("ascii", "replace")))


def is_proved(connection: socket.socket, token: str) -> bool:
    """Whether the other side of a connection, which has sent the notice, knows the job's token."""
    connection.settimeout(_ANSWER_SECONDS)
    nonce = new_nonce()
    expected = proof(token, _STATEMENT, nonce)
    with contextlib.suppress(OSError):
        connection.sendall(nonce.encode())
        return hmac.compare_digest(_receive(connection, len(expected)), expected)
    return False


def _receive(connection: socket.socket, size: int) -> bytes:
    """The next `size` bytes; fewer at the end."""
    with connection.makefile("rb") as stream:
        return stream.read(size)
