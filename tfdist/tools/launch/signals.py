"""Turns signals into bytes on a socket, which a selector can watch.

with signals() as wakeup:
    numbers = wakeup.recv(1 << 12)
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: The signals that end a job.
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def signals() -> Iterator[socket.socket]:
    """A socket that receives the number of each SIGCHLD and `INTERRUPTIONS` as one byte."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        # An ignored signal stays ignored, so that nohup works.
        handled = [n for n in INTERRUPTIONS if signal.getsignal(n) != signal.SIG_IGN]
        before = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGCHLD, *handled)}
        fd_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)
