"""The signals that concern a job, as bytes on a socket that can be waited for with others.

with signals() as wakeup:
    numbers = wakeup.recv(1 << 12)
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: Those that tell a job to end.
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def signals() -> Iterator[socket.socket]:
    """A socket that gets the number of each signal that concerns a job, as one byte."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        # An ignored interruption stays ignored: that is how nohup keeps a job alive.
        heard = [n for n in INTERRUPTIONS if signal.getsignal(n) != signal.SIG_IGN]
        before = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGCHLD, *heard)}
        fd_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)
