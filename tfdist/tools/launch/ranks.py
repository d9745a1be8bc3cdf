"""Lets the ranks of Horovod, which an engine has started, wait for each other.

if wait_for_ranks(rendezvous, config, timeout=300.0, token=token):
    os.execve(sys.executable, task.command, task.environ(os.environ))
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.errors import UsageError, log
from tfdist.tools.launch.rendezvous import Rendezvous
from tfdist.tools.launch.spawn import die_with

_POLL_SECONDS = 0.2
_READY = "ready"


def wait_for_ranks(
    rendezvous: Rendezvous, config: ClusterConfig, timeout: float, token: str
) -> bool:
    """Waits until all ranks of a job are ready to start.

    Horovod gives the ranks only seconds to find each other. So each rank says in the store of the
    rendezvous that it is ready, and the first one waits for all others. It leaves a child process
    that serves the rendezvous until this process ends, also after it has become the script.

    Args:
      rendezvous: where the ranks meet.
      config: the cluster and the rank's task.
      timeout: how long to wait, in seconds.
      token: the job's token.

    Returns:
      Whether all ranks are ready; the reason is logged if they are not.
    """
    names = [str(task) for task in config.cluster.training_tasks]
    store = RendezvousStore(rendezvous.host, rendezvous.port, token)
    own = str(config.task)
    if own != names[0]:
        return _wait(lambda: [] if _join(store, own, names[0]) else names[:1], timeout)
    reader, writer = os.pipe()
    parent = os.getpid()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read(1) != b""
    try:
        die_with(parent)
        # Ctrl-C ends the script, and the script's end ends this process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with rendezvous.serve(token):
            store.put(own, _READY)
            if _wait(partial(_absent, store, names), timeout):
                os.write(writer, b"r")
                while True:
                    signal.pause()
    except (OSError, UsageError) as error:
        log(f"error: {error}")
    finally:
        os._exit(1)


def _wait(missing: Callable[[], Sequence[str]], timeout: float) -> bool:
    """Waits until no rank is missing; returns whether that happened in time."""
    until = time.monotonic() + timeout
    if names := missing():
        log(f"waiting for {', '.join(names)}")
    while names and (names := missing()):
        if time.monotonic() > until:
            log(f"error: waited {timeout:g} s (--startup_timeout) for {', '.join(names)}")
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _absent(store: RendezvousStore, names: Sequence[str]) -> list[str]:
    return [name for name in names if store.get(name, seconds=0) is None]


def _join(store: RendezvousStore, own: str, first: str) -> bool:
    """Says to the first rank that this one is ready; returns whether the first one has heard it."""
    # Nothing may be served yet.
    with suppress(OSError):
        # Horovod cannot join a rendezvous again: each start of the ranks has its own.
        if not _absent(store, [first]) and _absent(store, [own]):
            store.put(own, _READY)
            return True
    return False
