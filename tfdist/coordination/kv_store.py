"""The key-value store that the training tasks of a job share.

    store = RendezvousStore("10.0.0.1", 2222)    # under Horovod, after rank 0 has started to serve
    store.put("worker:1", "step 40")
    store.get("worker:0", seconds=5.0)           # the value, or None after 5 seconds

Preemption and local SGD exchange short messages in it. The implementation over TensorFlow's
coordination service is `tfdist.upstream.tf_coordination.CoordinationServiceStore`.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Protocol

_REQUEST_SECONDS = 5.0
_POLL_SECONDS = 0.5
# The store is a task of the job: requests to it must not go through a proxy.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class KeyValueStore(Protocol):
    """A store of short strings, shared by the training tasks of a job."""

    def put(self, key: str, value: str) -> None:
        """Stores `value`. A key is written once, or again with the same value."""

    def get(self, key: str, seconds: float) -> str | None:
        """Waits up to `seconds` for the key; returns its value, or None if it is not set."""


class RendezvousStore:
    """The key-value store of Horovod's rendezvous server, over HTTP.

    Args:
      host: where rank 0, or the launcher, serves the rendezvous.
      port: the port there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/tfdist"

    def put(self, key: str, value: str) -> None:
        request = urllib.request.Request(f"{self._url}/{key}", value.encode(), method="PUT")
        _opener.open(request, timeout=_REQUEST_SECONDS).close()

    def get(self, key: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                with _opener.open(f"{self._url}/{key}", timeout=_REQUEST_SECONDS) as response:
                    return str(response.read().decode())
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # The server has no request that waits for a key.
            time.sleep(min(_POLL_SECONDS, left))
